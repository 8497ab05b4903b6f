"""A search to look at: the real core and the real policies, played on a heap of made-up facts.

``Scene(...).play(until)`` feeds ``Experiment.handle`` in virtual time and is repeatable: same arguments, same views.
Not a test of the scheduler; it exists so that the dashboard is tested on standings that really occur.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from gpusched import policies
from gpusched.core.decisions import (
    Command,
    ConfirmRelease,
    Kill,
    Launch,
    Save,
    SetTimer,
    Yield,
)
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    ExperimentStarted,
    Reported,
    TimerFired,
    TrialExited,
    TrialUp,
)
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.dashboard import view as views
from gpusched.devices.base import Reading
from tests.events import reported

VIEWS = Path(__file__).with_name("golden") / "views"


def recorded(name: str) -> views.View:
    """A view that was recorded once; what a policy decides may have changed since, the form of a view may not."""
    return views.from_json(json.loads((VIEWS / f"{name}.json").read_text()))


class Scene:
    """One search. ``fails``: trials that raise at their second step; ``broken``: trials that report NaN."""

    def __init__(
        self,
        *,
        atoms: int = 4,
        deadline_s: float = 60.0,
        policy: str = "hypersched",
        options: dict[str, Any] | None = None,
        step_s: float = 0.5,
        seed: int = 7,
        kind: str = "cpu",
        mode: str = "max",
        fails: tuple[int, ...] = (),
        broken: tuple[int, ...] = (),
        max_trials: int | None = None,
    ) -> None:
        defaults = {"R": 81, "r": 1, "eta": 3.0} if policy != "fifo" else {"R": 81}
        self.policy = policies.make(policy, options or defaults)
        self.policy_name, self.kind, self.mode = policy, kind, mode
        rules = Rules(
            deadline_s=deadline_s, mode=mode, watch=False, max_trials=max_trials, max_failures=100
        )
        self._seed, self._step_s, self._fails, self._broken = seed, step_s, fails, broken
        self.experiment = Experiment(rules, self.policy, self._draw)
        self.seen: list[tuple[Event, list[Command]]] = []
        self._heap: list[tuple[float, int, Event]] = []
        self._count = itertools.count()
        self._timers: dict[str, float] = {}
        self._running: dict[tuple[int, int], bool] = {}
        self._leaving: dict[int, Command] = {}
        self._saved: dict[int, int] = {}
        self.ids = tuple(f"{kind}:{n}" if kind == "cpu" else f"gpu{n}" for n in range(atoms))
        self.tell(ExperimentStarted(at=0.0, devices=self.ids))

    # ------------------------------------------------------------ playing

    def tell(self, event: Event) -> None:
        """A fact from outside, now."""
        commands = self.experiment.handle(event)
        self.experiment.check()
        self.seen.append((event, commands))
        for command in commands:
            self._carry_out(command, event.at)
        if type(event) is Reported:
            self._after_report(event)

    def play(self, until: float = math.inf) -> Scene:
        """Go on to this time, or to the end."""
        while self._heap and self._heap[0][0] <= until and not self.experiment.finished:
            _, _, event = heapq.heappop(self._heap)
            if type(event) is TimerFired and self._timers.get(event.timer) != event.at:
                continue
            if type(event) is Reported and not self._running.get((event.trial, event.incarnation)):
                continue
            self.tell(event)
        return self

    def frames(self, every_s: float) -> Iterator[views.View]:
        """A view each ``every_s`` of virtual time, to the end."""
        at = 0.0
        while not self.experiment.finished:
            self.play(at)
            yield self.view(now=at)
            at += every_s
        yield self.view()

    def view(self, now: float | None = None, **more: Any) -> views.View:
        state = self.experiment.state
        more.setdefault("daemon_pid", 4242)
        more.setdefault("readings", self.readings() if self.kind == "gpu" else ())
        return views.build(
            state,
            name="digits-0714-1532",
            policy=self.policy_name,
            metric="accuracy" if self.mode == "max" else "loss",
            folder="/data/runs/digits-0714-1532",
            now=now,
            rungs=self.policy.rungs(state.view),
            eta=getattr(self.policy.options, "eta", None),
            notes=self.policy.notes(state.view),
            **more,
        )

    def readings(self) -> list[Reading]:
        random = Random(self._seed)
        held = {n for t in self.experiment.state.live.values() for n in t.devices}
        return [
            Reading(
                device=name,
                label=f"H100 {place}",
                utilisation=random.uniform(0.7, 0.99) if name in held else 0.0,
                memory_used_bytes=int((random.uniform(20, 70) if name in held else 0.4) * 2**30),
                memory_total_bytes=80 * 2**30,
                temperature_c=random.randint(45, 72),
                power_w=random.uniform(300, 690) if name in held else 71.0,
            )
            for place, name in enumerate(self.ids)
        ]

    # ------------------------------------------------------------ the made-up machine

    def _draw(self, number: int) -> dict[str, object]:
        random = Random(self._seed * 1000 + number)
        return {
            "lr": round(10 ** random.uniform(-4, -0.5), 6),
            "width": random.choice([16, 32, 64, 128]),
            "optimizer": {
                "name": random.choice(["sgd", "adam"]),
                "decay": 10 ** random.randint(-6, -3),
            },
        }

    def _metric(self, trial: int, step: int) -> float | None:
        if trial in self._broken:
            return None
        random = Random(self._seed * 7919 + trial)
        top, speed = 0.985 - 0.5 * random.random() ** 3, 0.1 + 0.5 * random.random()
        noise = Random(self._seed + trial * 1009 + step * 31).uniform(-0.012, 0.012)
        accuracy = min(0.9999, top - (top - 0.1) * math.exp(-speed * step**0.8) + noise)
        return round(accuracy if self.mode == "max" else 2.3 * (1 - accuracy), 5)

    def _push(self, event: Event) -> None:
        heapq.heappush(self._heap, (event.at, next(self._count), event))

    def _carry_out(self, command: Command, now: float) -> None:
        match command:
            case Launch(trial, incarnation):
                self._running[trial, incarnation] = True
                self._push(TrialUp(at=now + 0.2, trial=trial, incarnation=incarnation))
                self._next_report(trial, incarnation, now + 0.2)
            case Yield(trial) | Save(trial):
                self._leaving.setdefault(trial, command)
                if isinstance(command, Yield):
                    self._leaving[trial] = command
            case Kill(trial, incarnation):
                if self._running.pop((trial, incarnation), False):
                    self._push(
                        TrialExited(
                            at=now + 0.1, trial=trial, incarnation=incarnation, outcome="killed"
                        )
                    )
            case ConfirmRelease(devices):
                self._push(DevicesReleased(at=now + 0.25, devices=devices))
            case SetTimer(timer, at):
                self._timers[timer] = at
                self._push(TimerFired(at=at, timer=timer))
            case _:
                pass

    def _next_report(self, number: int, incarnation: int, now: float) -> None:
        trial = self.experiment.state.trials[number]
        step = trial.step + 1
        speed = self.experiment.state.speed.s(max(1, len(trial.devices)))
        time_s = self._step_s * (1 + 0.2 * Random(number).random()) / speed
        if number in self._fails and step >= 2:
            error = f"ValueError: trial {number} cannot be: loss is \x1b[31mnegative\x1b[0m\n  at line 7"
            self._push(
                TrialExited(
                    at=now + time_s,
                    trial=number,
                    incarnation=incarnation,
                    outcome="failed",
                    error=error,
                )
            )
            return
        metric = self._metric(number, step)
        self._push(
            reported(
                at=now + time_s,
                trial=number,
                incarnation=incarnation,
                seq=trial.seq + 1,
                step=step,
                metric=metric,
                step_time_s=time_s,
                metrics={"accuracy": metric if metric is not None else "nan", "loss": 0.25},
            )
        )

    def _after_report(self, report: Reported) -> None:
        trial, incarnation = report.trial, report.incarnation
        command = self._leaving.pop(trial, None)
        if isinstance(command, Yield):
            self._running.pop((trial, incarnation), None)
            self._push(
                TrialExited(
                    at=report.at + 0.15,
                    trial=trial,
                    incarnation=incarnation,
                    outcome="yielded",
                    step=report.step,
                    saved_step=report.step if command.save else None,
                )
            )
            return
        if isinstance(command, Save):
            self._push(
                CheckpointSaved(
                    at=report.at + 0.02,
                    trial=trial,
                    incarnation=incarnation,
                    step=report.step,
                    save_s=0.002,
                )
            )
        self._next_report(trial, incarnation, report.at)

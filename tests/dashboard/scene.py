"""A search to look at: the real core and the real policies, driven on the simulator's machine.

``Scene(...).play(until)`` is repeatable: same arguments, same views. Not a test of the scheduler; it exists so that the
dashboard is tested on standings that really occur.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from gpusched import policies
from gpusched.core.commands import Command
from gpusched.core.events import Event, TrialExited
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.dashboard import view as views
from gpusched.dashboard.model import Standing, from_json
from gpusched.devices.base import Device, Reading
from gpusched.driver.loop import Driver
from gpusched.sim.physics import Delays, SimulatedCurve
from gpusched.sim.study import start
from tests.faults import FaultyExecutor, Incident

VIEWS = Path(__file__).with_name("golden") / "views"
DELAYS = Delays(launch_s=0.2, resize_s=0.2, save_s=0.002, exit_s=0.1, release_s=0.25)


def recorded(name: str) -> Standing:
    """A view that was recorded once; what a policy decides may have changed since, the form of a view may not."""
    return from_json(json.loads((VIEWS / f"{name}.json").read_text()))


class Training:
    """A workload. ``fails``: trials that raise at their second step; ``broken``: trials that report NaN."""

    metric, mode = "accuracy", "max"
    defaults: Mapping[str, Any] = {}

    def __init__(self, fails: Sequence[int], broken: Sequence[int]) -> None:
        self._fails, self._broken = fails, broken

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        random = Random(seed * 7919 + trial)
        top, speed = 0.985 - 0.5 * random.random() ** 3, 0.1 + 0.5 * random.random()
        step_s = 0.5 * (1 + 0.2 * random.random())

        def metric(step: int) -> float:
            noise = Random(seed + trial * 1009 + step * 31).uniform(-0.012, 0.012)
            return round(min(0.9999, top - (top - 0.1) * math.exp(-speed * step**0.8) + noise), 5)

        shown = (lambda step: math.nan) if trial in self._broken else metric
        if trial in self._fails:
            return SimulatedCurve(shown, lambda step: step_s, length=1, ending="failed")
        return SimulatedCurve(shown, lambda step: step_s)


class Machine(FaultyExecutor):
    """The simulated machine, where a script fails with words of its own."""

    def poll(self, until: float) -> Sequence[Event]:
        events = super().poll(until)
        for event in events:
            if isinstance(event, TrialExited) and event.outcome == "failed":
                why = f"trial {event.trial} cannot be: loss is \x1b[31mnegative\x1b[0m\n  at line 7"
                event.error = f"ValueError: {why}"
        return events


class Scene:
    """One search, and what has happened in it."""

    def __init__(
        self,
        *,
        atoms: int = 4,
        deadline_s: float = 60.0,
        policy: str = "hypersched",
        kind: str = "cpu",
        fails: Sequence[int] = (),
        broken: Sequence[int] = (),
        incidents: Sequence[Incident] = (),
        max_trials: int | None = None,
    ) -> None:
        self._seed, self.policy_name, self.kind = 7, policy, kind
        options = {"R": 81} if policy == "fifo" else {"R": 81, "r": 1, "eta": 3.0}
        rules = Rules(deadline_s=deadline_s, watch=False, max_trials=max_trials, max_failures=100)
        self.experiment = Experiment(rules, policies.make(policy, options), self._draw)
        training = Training(fails, broken)
        self.ids = tuple(f"{kind}:{n}" if kind == "cpu" else f"gpu{n}" for n in range(atoms))
        devices = [Device(name, name) for name in self.ids]
        machine = Machine(training, devices, delays=DELAYS, incidents=incidents, seed=self._seed)
        self.seen: list[tuple[Event, list[Command]]] = []
        self._driver = Driver(self.experiment, machine, observer=self.on_event, check=True)
        start(self._driver, machine)

    # ------------------------------------------------------------ playing

    def on_event(self, event: Event, commands: list[Command]) -> None:
        self.seen.append((event, commands))

    def tell(self, event: Event) -> None:
        """A fact from outside, now."""
        self.play(event.at)
        self._driver.handle([event])

    def play(self, until: float = math.inf) -> Scene:
        """Go on to this time, or to the end."""
        while self._driver.executor.now() < until and not self.experiment.state.finished:
            self._driver.turn(until)
        return self

    def frames(self, every_s: float) -> Iterator[Standing]:
        """A view each ``every_s`` of virtual time, to the end."""
        at = 0.0
        while not self.experiment.state.finished:
            self.play(at)
            yield self.view(now=at)
            at += every_s
        yield self.view()

    def view(self, now: float | None = None, **more: Any) -> Standing:
        state, policy = self.experiment.state, self.experiment.policy
        more.setdefault("daemon_pid", 4242)
        more.setdefault("readings", self.readings() if self.kind == "gpu" else ())
        return views.build(
            state,
            name="digits-0714-1532",
            policy=self.policy_name,
            metric=Training.metric,
            folder="/data/runs/digits-0714-1532",
            now=now,
            idle=self.experiment.idle,
            notes=policy.notes(state),
            **more,
        )

    def readings(self) -> list[Reading]:
        random = Random(self._seed)
        held = {n for t in self.experiment.state.live.values() for n in t.devices}
        return [
            Reading(
                device=name,
                utilisation=random.uniform(0.7, 0.99) if name in held else 0.0,
                memory_used_bytes=int((random.uniform(20, 70) if name in held else 0.4) * 2**30),
                memory_total_bytes=80 * 2**30,
                temperature_c=random.randint(45, 72),
                power_w=random.uniform(300, 690) if name in held else 71.0,
            )
            for name in self.ids
        ]

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

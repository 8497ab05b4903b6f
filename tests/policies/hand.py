"""An experiment played by hand: the test says which trial reports what and when; everything else follows at once.

Launches come up at once, a trial that is told to leave does so at its report, devices are released as soon as asked
for (unless ``releases`` is switched off). Time stands still unless it is moved with ``at=`` or ``advance``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpusched import policies
from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch, Yield
from gpusched.core.events import (
    DevicesJoined,
    DevicesReleased,
    Event,
    TimerFired,
    TrialExited,
    TrialUp,
    UserAsked,
)
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.core.trial import TrialRecord
from gpusched.policies.extrapolation import Outlook
from tests.events import reported


@dataclass(frozen=True)
class Asked:
    """A curve that was to be extrapolated; ``seed``: trial and step."""

    curve: tuple[float, ...]
    horizon: int
    target: float
    seed: tuple[int, int]


class Oracle:
    """In the place of ``extrapolate``: keeps the questions, and answers the next one with ``says``."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.says: Outlook | None = None

    def __call__(
        self, curve: Any, horizon: int, target: float, *, predictor: Any, seed: Any
    ) -> Outlook | None:
        self.asked.append(Asked(curve, horizon, target, seed))
        found, self.says = self.says, None
        return found


class Hand:
    """One experiment under one policy."""

    def __init__(
        self,
        policy: str,
        options: Mapping[str, Any] | None = None,
        *,
        atoms: int = 4,
        deadline_s: float = 1000.0,
        configurations: int | None = None,
        start: bool = True,
        **rules: Any,
    ) -> None:
        self.policy = policies.make(policy, options or {})
        defaults: dict[str, Any] = {"scaling": "linear", "watch": False}
        self.experiment = Experiment(
            Rules(deadline_s=deadline_s, **{**defaults, **rules}),
            self.policy,
            lambda n: {"n": n} if configurations is None or n < configurations else None,
        )
        self.state = self.experiment.state
        self.releases = True
        self.now = 0.0
        self.events: list[Event] = []
        self.commands: list[Command] = []
        self._said: list[str] = []
        self._marked: dict[int, Yield] = {}
        self._queue: deque[Event] = deque()
        self._unreleased: list[str] = []
        if start:
            self.send(DevicesJoined(at=0.0, devices=tuple(f"d{n}" for n in range(atoms))))

    # ------------------------------------------------------------ what happens

    def send(self, event: Event) -> list[Command]:
        """Deal with an event and all that follows from it; what it caused by itself is returned."""
        self._queue.append(event)
        first: list[Command] | None = None
        while self._queue:
            happened = self._queue.popleft()
            self.events.append(happened)
            commands = self.experiment.handle(happened)
            self._said += self.state.said
            self.experiment.check()
            first = commands if first is None else first
            for command in commands:
                self.commands.append(command)
                self._carry_out(command)
        return first or []

    def report(
        self,
        trial: int,
        metric: float | None,
        *,
        step: int | None = None,
        took_s: float = 1.0,
        at: float | None = None,
        metrics: Mapping[str, float | str] | None = None,
    ) -> list[Command]:
        """A trial reports its next step (or ``step``), which took ``took_s``; it leaves if it is told to."""
        self._move_to(at)
        known = self.trial(trial)
        assert known.is_live, f"trial {trial} is {known.state.value}: it cannot report"
        caused = self.send(
            reported(
                at=self.now,
                trial=trial,
                incarnation=known.incarnation,
                seq=known.seq + 1,
                step=known.step + 1 if step is None else step,
                metric=metric,
                step_time_s=took_s,
                metrics=metrics or {},
            )
        )
        mark = self._marked.pop(trial, None)
        if mark is not None:
            self.exit(trial, "yielded", saved_step=known.step if mark.save else None)
        return caused

    def train(self, trial: int, values: Iterable[float | None], **more: Any) -> None:
        """Several reports of one trial, one after the other."""
        for value in values:
            self.report(trial, value, **more)

    def exit(self, trial: int, outcome: Any, *, saved_step: int | None = None) -> None:
        """The incarnation is gone."""
        self._marked.pop(trial, None)
        incarnation = self.trial(trial).incarnation
        self.send(
            TrialExited(
                at=self.now,
                trial=trial,
                incarnation=incarnation,
                outcome=outcome,
                saved_step=saved_step,
            )
        )

    def advance(self, to: float) -> None:
        """Let time pass; timers fire on their way."""
        while True:
            due = [(at, name) for name, at in self.state.timers.items() if at <= to]
            if not due:
                break
            at, name = min(due)
            self._move_to(max(at, self.now))
            self.send(TimerFired(at=self.now, timer=name))
        self._move_to(to)

    def user(self, verb: Any, trial: int | None = None) -> None:
        self.send(UserAsked(at=self.now, verb=verb, trial=trial))

    def release(self) -> None:
        """Everything that drains is released."""
        devices, self._unreleased = tuple(self._unreleased), []
        self.send(DevicesReleased(at=self.now, devices=devices))

    def _move_to(self, at: float | None) -> None:
        if at is not None:
            assert at >= self.now, f"back in time: from {self.now} to {at}"
            self.now = at

    def _carry_out(self, command: Command) -> None:
        match command:
            case Launch():
                self._queue.append(
                    TrialUp(at=self.now, trial=command.trial, incarnation=command.incarnation)
                )
            case Yield():
                self._marked[command.trial] = command
            case Kill():
                self._marked.pop(command.trial, None)
                self._queue.append(
                    TrialExited(
                        at=self.now,
                        trial=command.trial,
                        incarnation=command.incarnation,
                        outcome="killed",
                    )
                )
            case ConfirmRelease() if self.releases:
                self._queue.append(DevicesReleased(at=self.now, devices=command.devices))
            case ConfirmRelease():
                self._unreleased += command.devices
            case _:
                pass

    # ------------------------------------------------------------ how it stands

    def trial(self, trial: int) -> TrialRecord:
        return self.state.trials[trial]

    def where(self, trial: int) -> str:
        """The trial's state, as a word."""
        return self.trial(trial).state.value

    def atoms(self, trial: int) -> int:
        return self.trial(trial).atoms

    def why(self, trial: int) -> str:
        """The last line of its story."""
        return self.trial(trial).story[-1][1]

    @property
    def live(self) -> list[int]:
        return sorted(self.state.live)

    @property
    def paused(self) -> list[int]:
        return sorted(self.state.paused)

    @property
    def count(self) -> int:
        """Trials so far."""
        return len(self.state.trials)

    @property
    def said(self) -> str:
        """All decisions in words, a line each."""
        told = [text for trial in self.state.trials.values() for _, text in trial.story]
        return "\n".join((*self._said, *told))

    @property
    def notes(self) -> str:
        return "\n".join(self.policy.notes(self.state))

    def explain(self, trial: int) -> list[str]:
        """The policy's own sentences about a trial."""
        view = self.state
        return list(self.policy.explain(view, view.trials[trial]))

    def launched(self, trial: int) -> list[int]:
        """On how many atoms each of its incarnations was launched."""
        return [len(c.devices) for c in self.commands if isinstance(c, Launch) and c.trial == trial]

    @property
    def finished(self) -> str | None:
        """Why it is over, or None."""
        return self.state.stopping if self.state.finished else None

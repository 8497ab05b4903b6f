"""An experiment played by hand: the test says which trial reports what and when; everything else follows at once.

Launches come up at once, a trial that is told to leave does so at its report, devices are released as soon as asked
for (unless ``releases`` is switched off). Time stands still unless it is moved with ``at=`` or ``advance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from gpusched import policies
from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch, Yield
from gpusched.core.events import DevicesReleased, Event, TrialExited, TrialUp
from gpusched.policies.extrapolation import Outlook
from tests.helpers import Script


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


class Hand(Script):
    """One experiment under one policy."""

    def __init__(
        self,
        policy: str,
        options: Mapping[str, Any] | None = None,
        *,
        atoms: int = 4,
        configurations: int | None = None,
        **rules: Any,
    ) -> None:
        super().__init__(
            devices=atoms,
            policy=policies.make(policy, options or {}),
            draw=lambda n: {"n": n} if configurations is None or n < configurations else None,
            **rules,
        )
        self.releases = True
        self._launches: list[Launch] = []
        self._said: list[str] = []
        self._marked: dict[int, Yield] = {}
        self._queue: list[Event] = []
        self._unreleased: list[str] = []
        self.start()

    # ------------------------------------------------------------ what happens

    def feed(self, event: Event) -> Self:
        """Deal with an event and all that follows from it."""
        self._queue.append(event)
        while self._queue:
            happened = self._queue.pop(0)
            if isinstance(happened, TrialExited):
                self._marked.pop(happened.trial, None)
            super().feed(happened)
            self._said += self.state.said
            for command in self.take():
                self._carry_out(command)
        return self

    def report(
        self,
        trial: int,
        metric: float | None = 0.5,
        *,
        at: float | None = None,
        took_s: float = 1.0,
        **more: Any,
    ) -> Self:
        """A trial reports its next step (or ``step``), which took ``took_s``; it leaves if it is told to."""
        self._move_to(at)
        known = self.trial(trial)
        assert known.is_live, f"trial {trial} is {known.state.value}: it cannot report"
        super().report(trial, metric, step_time_s=took_s, **more)
        if (mark := self._marked.pop(trial, None)) is not None:
            self.exited(trial, saved=known.step if mark.save else None)
        return self

    def train(self, trial: int, values: Iterable[float | None], **more: Any) -> None:
        """Several reports of one trial, one after the other."""
        for value in values:
            self.report(trial, value, **more)

    def advance(self, to: float) -> None:
        """Let time pass; timers fire on their way."""
        while due := [(at, name) for name, at in self.state.timers.items() if at <= to]:
            self.timer(min(due)[1])
        self._move_to(to)

    def release(self) -> None:
        """Everything that drains is released."""
        devices, self._unreleased = tuple(self._unreleased), []
        self.released(*devices)

    def _move_to(self, at: float | None) -> None:
        if at is not None:
            assert at >= self.now, f"back in time: from {self.now} to {at}"
            self.now = at

    def _carry_out(self, command: Command) -> None:
        now = self.now
        match command:
            case Launch(trial=trial, incarnation=incarnation):
                self._launches.append(command)
                self._queue.append(TrialUp(at=now, trial=trial, incarnation=incarnation))
            case Yield():
                self._marked[command.trial] = command
            case Kill(trial=trial, incarnation=number):
                gone = TrialExited(at=now, trial=trial, incarnation=number, outcome="killed")
                self._queue.append(gone)
            case ConfirmRelease() if self.releases:
                self._queue.append(DevicesReleased(at=now, devices=command.devices))
            case ConfirmRelease():
                self._unreleased += command.devices

    # ------------------------------------------------------------ how it stands

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
        return list(self.policy.explain(self.state, self.trial(trial)))

    def launched(self, trial: int) -> list[int]:
        """On how many atoms each of its incarnations was launched."""
        return [len(launch.devices) for launch in self._launches if launch.trial == trial]

    @property
    def finished(self) -> str | None:
        """Why it is over, or None."""
        return self.state.stopping if self.state.finished else None

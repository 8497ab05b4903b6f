"""The story of each trial and each device: the one reader of a journal for reports, exports and traces.

Nothing is replayed, so the journal may come from another version of a policy. ``read`` opens the journal for an instant
and for reading only, so that it can be read beside the daemon that writes it (SQLite's WAL lets readers see what is
committed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched.core.commands import Launch
from gpusched.core.events import (
    CheckpointSaved,
    DaemonResumed,
    DevicesJoined,
    DevicesReleased,
    Event,
    Outcome,
    QuarantineChanged,
    Reported,
    TrialExited,
)
from gpusched.journal import rows
from gpusched.journal.rows import Cursor, Entry
from gpusched.protocol import Report


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """A step that was reported. ``metric``: None where it was not finite."""

    at: float
    report: Report
    metric: float | None


@dataclass(slots=True)
class IncarnationTimeline:
    """One launch of a trial. ``saved_since_report_s``: how long saves took after the last report."""

    number: int
    devices: tuple[str, ...]
    launched_at: float
    steps: list[ReportedStep] = field(default_factory=list)
    saved_since_report_s: float = 0.0
    exited_at: float | None = None
    outcome: Outcome | None = None
    error: str | None = None


@dataclass(slots=True)
class TrialTimeline:
    """One trial: its configuration and its launches, in order."""

    id: int
    hparams: Mapping[str, Any]
    incarnations: list[IncarnationTimeline] = field(default_factory=list)

    @property
    def curve(self) -> list[tuple[float, int, float | None]]:
        """Time, step and metric of each report; the metric None where it was not finite."""
        return [(step.at, step.report.step, step.metric) for _, step in self.steps()]

    def steps(self) -> Iterator[tuple[IncarnationTimeline, ReportedStep]]:
        """Yield every reported step with its incarnation; a step that was trained twice is there twice."""
        for incarnation in self.incarnations:
            for step in incarnation.steps:
                yield incarnation, step

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the last incarnation; None until that has ended."""
        return self.incarnations[-1].outcome if self.incarnations else None

    def best(self, sign: float) -> float | None:
        """Return the best finite metric; ``sign``: +1 where more is better, else -1."""
        finite = (step.metric for _, step in self.steps() if step.metric is not None)
        return max(finite, key=lambda value: value * sign, default=None)


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A device was in a state from ``begin`` to ``end`` (seconds): held by ``trial``, draining, or quarantined."""

    device: str
    state: str
    begin: float
    end: float
    trial: int | None = None
    why: str = ""


@dataclass(slots=True)
class Timeline:
    """A search. ``until``: time of the last event; ``releases_s``: from a trial's exit to each confirmed release;
    ``saves_s``: how long training stood still for each checkpoint.
    """

    devices: tuple[str, ...] = ()
    trials: dict[int, TrialTimeline] = field(default_factory=dict)
    spans: list[DeviceSpan] = field(default_factory=list)
    releases_s: list[float] = field(default_factory=list)
    saves_s: list[float] = field(default_factory=list)
    until: float = 0.0


#: A step with its trial and incarnation.
News = tuple[TrialTimeline, IncarnationTimeline, ReportedStep]


def read(path: Path) -> Timeline:
    """Read a journal that a daemon may be writing. Raises DamagedState."""
    return timeline(rows.read(path))


def timeline(entries: Iterable[Entry]) -> Timeline:
    """Arrange the entries of a journal by trial and device."""
    reader = _Reader()
    for entry in entries:
        reader.take(entry)
    return reader.finish()


class _Reader:
    """Entries in, a timeline out. ``news``: the steps that were taken since it was emptied."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.told = Timeline()
        #: Of each device that is not free: state, since when, trial, reason.
        self._since: dict[str, tuple[str, float, int | None, str]] = {}

    def take(self, entry: Entry) -> None:
        event = entry.event
        self.told.until = max(self.told.until, event.at)
        self._see(event)
        for command in entry.commands:
            if isinstance(command, Launch):
                self._launch(command, event.at)

    def _running(self, of: Reported | CheckpointSaved | TrialExited) -> IncarnationTimeline | None:
        """Return the trial's present incarnation, if that is meant: a late word of one before says nothing."""
        trial = self.told.trials.get(of.trial)
        present = trial.incarnations[-1] if trial is not None else None
        return present if present is not None and present.number == of.incarnation else None

    def _see(self, event: Event) -> None:
        if isinstance(event, DevicesJoined | DaemonResumed):
            for device, why in event.unusable.items():
                self._enter(device, "quarantined", event.at, why=why)
        match event:
            case DevicesJoined():
                self.told.devices = tuple(dict.fromkeys((*self.told.devices, *event.devices)))
            case Reported():
                self._reported(event)
            case CheckpointSaved():
                self.told.saves_s.append(event.save_s)
                if (running := self._running(event)) is not None:
                    running.saved_since_report_s += event.save_s
            case TrialExited():
                if (running := self._running(event)) is not None:
                    running.exited_at, running.outcome = event.at, event.outcome
                    running.error = event.error
                    for device in running.devices:
                        if self._since.get(device, ("",))[0] == "held":
                            self._enter(device, "draining", event.at, event.trial)
            case DevicesReleased():
                for device in event.devices:
                    if self._since.get(device, ("",))[0] == "draining":
                        self.told.releases_s.append(event.at - self._since[device][1])
                    self._leave(device, event.at)
            case QuarantineChanged(reason=""):
                self._leave(event.device, event.at)
            case QuarantineChanged():
                self._enter(event.device, "quarantined", event.at, why=event.reason)
            case _:
                pass

    def _launch(self, command: Launch, at: float) -> None:
        trial = self.told.trials.setdefault(
            command.trial, TrialTimeline(command.trial, command.hparams)
        )
        trial.incarnations.append(IncarnationTimeline(command.incarnation, command.devices, at))
        for device in command.devices:
            self._enter(device, "held", at, command.trial)

    def _reported(self, event: Reported) -> None:
        running = self._running(event)
        if running is None:
            return
        running.saved_since_report_s = 0.0
        step = ReportedStep(event.at, event.report, event.metric)
        running.steps.append(step)
        self.news.append((self.told.trials[event.trial], running, step))

    def _enter(
        self, device: str, state: str, at: float, trial: int | None = None, why: str = ""
    ) -> None:
        self._leave(device, at)
        self._since[device] = (state, at, trial, why)

    def _leave(self, device: str, at: float) -> None:
        if (known := self._since.pop(device, None)) is not None:
            state, begin, trial, why = known
            self.told.spans.append(DeviceSpan(device, state, begin, at, trial, why))

    def finish(self) -> Timeline:
        for device in list(self._since):
            self._leave(device, self.told.until)
        return self.told


class JournalTail:
    """A journal that is read on from where it was left, beside the daemon that writes it; no step is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cursor = Cursor()
        self._reader = _Reader()

    def read(self) -> list[News]:
        """Return the steps reported since the last call, in order. Raises DamagedState."""
        for entry in rows.read(self._path, self._cursor):
            self._reader.take(entry)
        news, self._reader.news = self._reader.news, []
        for _, incarnation, _ in news:
            incarnation.steps.clear()
        return news

    @property
    def trials(self) -> Mapping[int, TrialTimeline]:
        """The trials that were read so far, by number, without their steps."""
        return self._reader.told.trials

"""Events: facts, in the past tense. The core changes only by being told one.

Every event carries ``at``: seconds since the experiment began (never decreasing). A new kind of event, or a new field
of one, is a new version of the journal: raise ``FORMAT`` in ``gpusched/journal/log.py``.

Not to be confused with decisions (what a policy wants) and commands (what an executor must do): ``decisions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpusched.protocol import Report

Outcome = Literal["yielded", "finished", "failed", "lost", "killed"]
Verb = Literal["pause", "unpause", "stop_trial", "stop", "cancel", "kill"]


@dataclass(slots=True, kw_only=True)
class Event:
    """A fact. Treated as immutable (not ``frozen``: that triples the cost of making one)."""

    at: float


@dataclass(slots=True, kw_only=True)
class ExperimentStarted(Event):
    """The daemon is ready; these devices are the experiment's.

    ``islands`` numbers groups of devices that talk to each other fast; a trial is placed inside one where possible.
    ``unusable``: those that cannot be used yet (a stranger's, leased, sick) and why; they begin in quarantine.
    """

    devices: tuple[str, ...]
    islands: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TrialUp(Event):
    """Every rank of the incarnation has joined its process group."""

    trial: int
    incarnation: int


@dataclass(slots=True, kw_only=True)
class Reported(Event):
    """Rank 0 made this report. ``metric``: the value that the search goes by; None where it was not finite (NaN, inf).

    ``stays``: the trial has been asked to yield for a resize and trains on until its next ranks are ready.
    ``can_save``: a ``Save`` is obeyed meanwhile (journals up to format 4: it is not).
    """

    trial: int
    report: Report
    metric: float | None
    stays: bool = False
    can_save: bool = False

    @property
    def incarnation(self) -> int:
        """The incarnation that made the report."""
        return self.report.incarnation

    @property
    def seq(self) -> int:
        """The number of the report among all of the trial."""
        return self.report.seq

    @property
    def step(self) -> int:
        """The step that was finished."""
        return self.report.step


@dataclass(slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint of this step is committed on disk. ``save_s``: how long training stood still for it."""

    trial: int
    incarnation: int
    step: int
    save_s: float
    size_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class TrialExited(Event):
    """End of an incarnation: no process of it is left.

    ``lost`` is the infrastructure's fault (a killed shim, a vanished device): it is relaunched and not counted
    against the trial. ``saved_step`` is the step of the checkpoint it committed when it left, if it did. ``barred``:
    it failed because its configuration cannot work here (out of memory), so that one is not tried again.
    """

    trial: int
    incarnation: int
    outcome: Outcome
    step: int | None = None
    saved_step: int | None = None
    error: str | None = None
    barred: bool = False
    #: Whether the launch was asked for and had not begun when the daemon ended: not counted as a fault.
    unbegun: bool = False


@dataclass(slots=True, kw_only=True)
class DevicesReleased(Event):
    """Confirmed: nothing of ours is on these devices any more."""

    devices: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class DeviceQuarantined(Event):
    """A device is out of use until it is readmitted. ``passing``: the reason may end by itself (a stranger leaves)."""

    device: str
    reason: str
    passing: bool = False


@dataclass(slots=True, kw_only=True)
class DeviceReadmitted(Event):
    """A quarantined device is confirmed clean again."""

    device: str


@dataclass(slots=True, kw_only=True)
class StorageChanged(Event):
    """The disk has too little room (``low``), or has room again; ``what`` says it in words."""

    low: bool
    what: str = ""


@dataclass(slots=True, kw_only=True)
class TimerFired(Event):
    """The time asked for by ``SetTimer`` has come."""

    timer: str


@dataclass(slots=True, kw_only=True)
class Forecasted(Event):
    """The result of a ``Forecast`` command: slow or non-repeatable work, done outside and never done again."""

    trial: int
    step: int
    forecast: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Suggested(Event):
    """The answer to ``Suggest``: a configuration (None: there are no more), and the sampler that it is ``by``.

    ``why``: the reason where another sampler than the recipe's has made it.
    """

    n: int
    hparams: Mapping[str, object] | None
    by: str
    why: str = ""


@dataclass(slots=True, kw_only=True)
class DaemonResumed(Event):
    """A new daemon has taken over; ``epoch`` counts daemons.

    ``launched``: after a salvage, the newest incarnation found on disk of trials whose last launches were lost; their
    numbers are not used again.
    """

    epoch: int
    launched: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class UserAsked(Event):
    """A person asked for this at the command line."""

    verb: Verb
    trial: int | None = None


@dataclass(slots=True, kw_only=True)
class DeadlineMoved(Event):
    """A person has moved the deadline to ``deadline_s``, seconds since the experiment began."""

    deadline_s: float


EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        ExperimentStarted,
        TrialUp,
        Reported,
        CheckpointSaved,
        TrialExited,
        DevicesReleased,
        DeviceQuarantined,
        DeviceReadmitted,
        StorageChanged,
        TimerFired,
        Forecasted,
        Suggested,
        DaemonResumed,
        UserAsked,
        DeadlineMoved,
    )
}

"""Events: facts, in the past tense. The core changes only by being told one.

Every event carries ``at``: seconds since the search began (never decreasing).

Not to be confused with decisions (what a policy wants) and commands (what an executor must do): ``decisions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from gpusched.protocol import Report

Outcome = Literal["yielded", "finished", "failed", "lost", "killed"]
Verb = Literal["pause", "unpause", "stop_trial", "stop", "cancel", "kill", "try"]


class Event(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A fact. Treated as immutable once it is handled."""

    at: float


class DevicesJoined(Event, kw_only=True):
    """Devices that are the search's from now on, which begins with the first; more come with each node of a cluster.

    ``islands`` numbers groups of devices that talk to each other fast; a trial is placed inside one where possible.
    ``unusable``: those that cannot be used yet (a stranger's, leased, sick) and why; they begin in quarantine.
    """

    devices: tuple[str, ...]
    islands: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)
    #: Names for people, of devices whose id is none: ``GPU 3`` rather than its UUID.
    labels: Mapping[str, str] = field(default_factory=dict)


class TrialUp(Event, kw_only=True):
    """Every rank of the incarnation has joined its process group.

    ``waited_s``: time that the launch waited for the warm server, which imports the script's libraries once.
    """

    trial: int
    incarnation: int
    waited_s: float = 0.0


class Reported(Event, kw_only=True):
    """Rank 0 made this report. ``metric``: the value that the search goes by; None where it was not finite."""

    trial: int
    report: Report
    metric: float | None

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


class CheckpointSaved(Event, kw_only=True):
    """A checkpoint of this step is committed on disk. ``save_s``: how long it took."""

    trial: int
    incarnation: int
    step: int
    save_s: float
    size_bytes: int = 0


class TrialExited(Event, kw_only=True):
    """End of an incarnation: no process of it is left.

    ``lost`` is the infrastructure's fault (a killed shim, a vanished device): it is relaunched and not counted
    against the trial. ``saved_step`` is the step of the checkpoint it committed when it left, if it did.
    """

    trial: int
    incarnation: int
    outcome: Outcome
    saved_step: int | None = None
    error: str | None = None
    #: Whether the launch had no process yet, as the daemon ended or none could be made: not counted as a fault.
    unbegun: bool = False


class DevicesReleased(Event, kw_only=True):
    """Confirmed: nothing of ours is on these devices any more."""

    devices: tuple[str, ...]


class QuarantineChanged(Event, kw_only=True):
    """A device is out of use for this reason or, without one, confirmed to be clean and in use again."""

    device: str
    reason: str = ""


class StorageChanged(Event, kw_only=True):
    """The disk has too little room (``low``), or has room again; ``what`` says it in words."""

    low: bool
    what: str = ""


class TimerFired(Event, kw_only=True):
    """The time of one of the state's timers has come."""

    timer: str


class Suggested(Event, kw_only=True):
    """The answer to ``Suggest``: a configuration (None: all have been suggested), and the sampler that it is ``by``.

    ``why``: the reason where another sampler than the recipe's has made it.
    """

    n: int
    hparams: Mapping[str, object] | None
    by: str
    why: str = ""


class DaemonResumed(Event, kw_only=True):
    """A new daemon has taken over; ``epoch`` counts daemons.

    ``unusable``: devices that cannot be used now, or are gone, and why.
    """

    epoch: int
    unusable: Mapping[str, str] = field(default_factory=dict)


class UserAsked(Event, kw_only=True):
    """A person asked for this at the command line, or a signal did. ``hparams``: the configuration to ``try`` next."""

    verb: Verb
    trial: int | None = None
    hparams: Mapping[str, object] = field(default_factory=dict)
    by: str = "the user"


class LimitsMoved(Event, kw_only=True):
    """A person has set the deadline to ``deadline_s``, seconds since the search began; what is left out stays.

    ``checkpoints``: the search continues after its end; step of the newest committed checkpoint on disk by trial, and
    a trial whose checkpoints were removed stays over.
    """

    deadline_s: float
    target: float | UnsetType | None = UNSET
    max_trials: int | UnsetType | None = UNSET
    checkpoints: Mapping[str, int] | None = None


def is_reopened(event: Event) -> bool:
    """Tell whether the event has a search continue after its end."""
    return isinstance(event, LimitsMoved) and event.checkpoints is not None


EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}

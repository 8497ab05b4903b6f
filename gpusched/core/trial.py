"""A trial and its states. The transition table is the law; anything not in it raises with the trial's story.

The picture is in the package's own text. A trial that only the end of the search has stopped (``cut_atoms``) is PAUSED
again where the search continues.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpusched.core.commands import KeepBest
from gpusched.protocol import Report
from gpusched.text import count

NEVER = -math.inf


class TrialState(enum.Enum):
    """State of a trial. COMPLETED, STOPPED and FAILED are final."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    YIELDING = "yielding"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    is_final: bool
    is_live: bool


for _state in TrialState:
    # Plain attributes rather than properties: read several times for every report.
    _state.is_final = _state.value in ("completed", "stopped", "failed")
    _state.is_live = _state.value in ("starting", "running", "yielding")

S = TrialState
#: Looked up once: a member is four times dearer through its class, and every report compares these.
RUNNING, YIELDING = S.RUNNING, S.YIELDING

#: From each state, the states it may go to.
TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    S.PENDING: frozenset({S.STARTING}),
    S.STARTING: frozenset(
        {S.STARTING, S.RUNNING, S.YIELDING, S.PAUSED, S.COMPLETED, S.STOPPED, S.FAILED}
    ),
    S.RUNNING: frozenset({S.YIELDING, S.STARTING, S.PAUSED, S.COMPLETED, S.FAILED}),
    S.YIELDING: frozenset({S.STARTING, S.PAUSED, S.COMPLETED, S.STOPPED, S.FAILED}),
    S.PAUSED: frozenset({S.STARTING, S.STOPPED, S.COMPLETED}),
    S.COMPLETED: frozenset({S.PAUSED}),
    S.STOPPED: frozenset({S.PAUSED}),
    S.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class After:
    """Sequel of a yield: the state to go to, and for a resize the number of atoms.

    ``save``: the trial has been told to save a checkpoint before it leaves. ``reserved``: devices taken for the resize;
    clean, and not yet used by the trial.
    """

    state: TrialState
    reason: str
    atoms: int = 0
    save: bool = False
    reserved: tuple[str, ...] = ()

    @property
    def is_resize(self) -> bool:
        return self.state is S.STARTING


@dataclass(slots=True)
class Doom:
    """Order to an incarnation to die, when it was first given. ``why``: reason if unplanned: the trial is relaunched.

    ``hung``: killed because it hung; the exit event says where each rank was stuck.
    """

    at: float
    grace_s: float
    why: str = ""
    hung: bool = False


@dataclass(frozen=True, slots=True)
class Cap:
    """The most atoms that a trial may have from now on, and what happened on more of them, in words."""

    atoms: int
    why: str


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """A checkpoint on disk and the score its trial reported at that step."""

    trial: int
    step: int
    score: float
    metric: float
    atoms: int
    at: float

    @property
    def command(self) -> KeepBest:
        return KeepBest(self.trial, self.step, self.metric, self.atoms)


class InvalidTransition(Exception):
    """A transition that the table does not know. The message ends with the trial's story."""

    def __init__(self, trial: TrialRecord, to: TrialState) -> None:
        story = "\n".join(f"  {at:10.3f}s  {text}" for at, text in trial.story)
        super().__init__(f"trial {trial.id}: {trial.state.value} -> {to.value} is illegal\n{story}")


@dataclass(slots=True, eq=False)
class TrialRecord:
    """One hyperparameter configuration and all that is known of it.

    ``score`` is the latest metric turned so that more is better; a metric that was not finite scores ``-inf``.
    """

    id: int
    hparams: Mapping[str, object]
    #: Value that the policy gave ``Start(tag=..)``; comes back with the trial.
    tag: Any = None
    state: TrialState = S.PENDING
    #: Reason for which it came into its state.
    reason: str = "reason unknown"
    after: After | None = None

    #: Launches so far; 0 before the first. Events of an older incarnation are ignored.
    incarnation: int = 0
    #: The newest incarnation of which nothing is left. Its events are over too: whatever still comes is ignored.
    gone: int = 0
    #: Devices it holds, in the order of its ranks; empty unless live.
    devices: tuple[str, ...] = ()

    #: Steps that the latest report stands for: since the one before it or, in a new launch, since the checkpoint.
    stride: int = 1
    score: float = NEVER
    #: Best finite metric so far, as a score, and the step it was reported at.
    best_score: float = NEVER
    best_step: int = 0
    metric: float | None = None
    """The metric of the latest report; None where it was not finite."""
    step: int = 0
    """The step of the latest report."""
    #: The highest step that was reported; a relaunch goes back to a checkpoint.
    furthest_step: int = 0
    #: The number of the latest report.
    seq: int = 0
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    """Every number of the latest report."""

    saved_step: int = 0
    """Step of the newest committed checkpoint; 0: none."""
    #: When that was committed.
    saved_at: float = NEVER
    save_s: float = 0.0
    """Seconds that the latest save took."""

    #: When the launch, or the yield of a resize, was decided: the start of what counts as overhead. None: not known.
    decided_at: float | None = 0.0
    #: When it last reported or, before that, was launched.
    heard_at: float = 0.0
    #: When the present incarnation came up, and the training time of those before it.
    up_at: float | None = None
    past_training_s: float = 0.0
    #: Atoms that its last report came from; the most that it may have (None: any).
    trained_atoms: int = 0
    cap: Cap | None = None
    #: Steps reported by the present incarnation.
    steps_since_launch: int = 0
    #: Time of one step, of which a report stands for ``stride``.
    step_time_s: float | None = None
    #: Seconds between its last reports, within an incarnation.
    intervals_s: deque[float] = field(default_factory=lambda: deque(maxlen=9))

    infrastructure_faults: int = 0
    """Faults of the machine since the trial last came to a new step."""
    #: What was said of each failure of its script that it continued after, by the furthest step then.
    retries: dict[int, str] = field(default_factory=dict)
    #: Set once this incarnation has been told to die, until it has.
    doom: Doom | None = None
    held_by_user: bool = False
    #: Atoms it trained on when the end of the search stopped it, 0 if it was paused then; None: it was not stopped so.
    cut_atoms: int | None = None
    #: Events of its life, for ``explain`` and for error messages: (at, text).
    story: list[tuple[float, str]] = field(default_factory=list)
    #: (step, metric) of every report in order of arrival; the metric is NaN where it was not finite.
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def reserved(self) -> tuple[str, ...]:
        """Devices taken for the resize that the trial leaves for."""
        return self.after.reserved if self.after is not None else ()

    @property
    def error(self) -> str | None:
        """Reason for which the trial has failed or, until it is over, the last failure that it continued after."""
        if not self.is_final:
            return next(reversed(self.retries.values()), None)
        return self.reason if self.state is S.FAILED else None

    @property
    def atoms(self) -> int:
        """Atoms that the trial holds now; 0 unless live."""
        return len(self.devices)

    @property
    def size_in_words(self) -> str:
        return count(self.atoms, "atom")

    def has_passed(self, every: int) -> bool:
        """Tell whether the latest report stands on a multiple of ``every`` steps, or has passed one."""
        return self.step % every < self.stride

    @property
    def is_live(self) -> bool:
        """Whether the trial starts, trains or is about to leave."""
        return self.state.is_live

    @property
    def has_processes(self) -> bool:
        """Whether the incarnation was launched and is not known to be gone.

        Not to be confused with ``is_live``: between two incarnations of a resize a trial is live and has none.
        """
        return self.incarnation > self.gone

    @property
    def is_resizing(self) -> bool:
        """Whether the trial leaves to continue at another size."""
        return self.after is not None and self.after.is_resize

    @property
    def is_final(self) -> bool:
        """Whether the trial is completed, stopped or failed."""
        return self.state.is_final

    @property
    def may_resume(self) -> bool:
        """Whether the trial is paused, and not by a person."""
        return self.state is S.PAUSED and not self.held_by_user

    @property
    def report_s(self) -> float:
        """Usual time to the next report; 0 where it is not known."""
        usual_s = statistics.median(self.intervals_s) if self.intervals_s else 0.0
        return max(usual_s, self.stride * (self.step_time_s or 0.0))

    def training_s(self, now: float) -> float:
        """Return the seconds it has been up so far, over all incarnations."""
        running = now - self.up_at if self.up_at is not None else 0.0
        return self.past_training_s + running

    def record(
        self, report: Report, metric: float | None, sign: float, stride: int, now: float
    ) -> None:
        """Take in a report; ``stride``: steps since the trial's last one; ``sign`` turns its metric into a score."""
        if self.steps_since_launch:
            self.intervals_s.append(now - self.heard_at)
        self.step, self.seq, self.metrics = report.step, report.seq, report.metrics
        if self.step > self.furthest_step:
            self.furthest_step, self.infrastructure_faults = self.step, 0
        self.metric, self.stride, self.heard_at = metric, stride, now
        self.score = NEVER if metric is None else metric * sign
        if self.score > self.best_score:
            self.best_score, self.best_step = self.score, self.step
        self.trained_atoms = len(self.devices) or self.trained_atoms  # they may have been lost
        self.steps_since_launch += stride
        self.curve.append((report.step, math.nan if metric is None else metric))

    def tell(self, at: float, text: str) -> None:
        """Add a line to the trial's story."""
        self.story.append((at, text))

    def go(self, to: TrialState, at: float, why: str) -> None:
        """Change state. Raises InvalidTransition if the table does not allow it."""
        if to not in TRANSITIONS[self.state]:
            raise InvalidTransition(self, to)
        self.story.append((at, f"{self.state.value} -> {to.value}: {why}" if why else to.value))
        self.state, self.reason = to, why or to.value

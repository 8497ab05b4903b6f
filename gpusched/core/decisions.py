"""The seam to policies: what a policy sees (``View``), what it decides (in atoms), and what it is asked (``Policy``).

A view is the state itself, to be read and never changed. Answers are decisions as values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gpusched.core.rules import Rules
from gpusched.core.rung import Rung
from gpusched.core.trial import Curve, TrialState

#: End of the reason of a ``Stop`` for a trial that has no time for another step: the deadline ends that trial.
NO_STEP_FITS = "another step would not end before the deadline"
#: An option and what is wrong with its value, with what to do about it.
BadOption = tuple[str, str]

# ---------------------------------------------------------------- what a policy decides


@dataclass(frozen=True, slots=True)
class Start:
    """Draw the next configuration of the sequence and run it on ``atoms`` atoms.

    ``tag`` is the policy's own; the new trial carries it as ``trial.tag``.
    """

    atoms: int = 1
    reason: str = ""
    tag: Any = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a paused trial."""

    trial: int
    atoms: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """Yield at this step and continue with ``atoms`` atoms."""

    trial: int
    atoms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Yield at this step; may be resumed."""

    trial: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave at this step for good. A paused trial is stopped at once."""

    trial: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Complete:
    """The trial has had all the steps it may have."""

    trial: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call ``on_wake`` at this time (seconds since the search began)."""

    at: float


@dataclass(frozen=True, slots=True)
class AskForecast:
    """Have the trial's learning curve extrapolated; the result comes back through ``on_forecast``."""

    trial: int
    curve: tuple[float, ...]
    horizon: int
    target: float


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people something about the search as a whole."""

    text: str


@dataclass(frozen=True, slots=True)
class LeaveFree:
    """Give the free atoms to nobody now, and say why; without figures, as idle time is counted by reason."""

    why: str


Decision = (
    Start | Resume | Resize | Pause | Stop | Complete | WakeAt | AskForecast | Say | LeaveFree
)
NOTHING: tuple[Decision, ...] = ()

# ---------------------------------------------------------------- what a policy sees


class TrialView(Protocol):
    """One trial, to be read and never changed (``core/trial.py``). Times in seconds since the search began."""

    id: int
    hparams: Mapping[str, object]
    #: Value that the policy gave ``Start(tag=..)`` for this trial.
    tag: Any
    state: TrialState
    #: Whether a person paused the trial: leave it alone.
    held_by_user: bool
    #: Launches so far.
    incarnation: int
    #: Steps since the report before the latest, or since the checkpoint: 1 where a script reports every step.
    stride: int
    #: The latest metric turned so that more is better; minus infinity where it was not finite.
    score: float
    best_score: float
    best_step: int
    #: (step, metric) of every report so far.
    curve: Curve
    #: Steps reported by the present incarnation.
    steps_since_launch: int
    #: Time of one step, of which a report stands for ``stride``.
    step_time_s: float | None
    #: When the present incarnation came up; None while none is up.
    up_at: float | None

    @property
    def step(self) -> int:
        """Step of the latest report."""
        ...

    @property
    def metric(self) -> float | None:
        """The latest metric; None where it was not finite."""
        ...

    @property
    def saved_step(self) -> int:
        """Step of the newest committed checkpoint (0: none); ``save_s``: how long the latest save took."""
        ...

    @property
    def save_s(self) -> float: ...
    @property
    def is_live(self) -> bool: ...
    @property
    def is_final(self) -> bool: ...
    @property
    def is_resizing(self) -> bool:
        """Whether it has been asked to leave and come back with other atoms."""
        ...

    @property
    def atoms(self) -> int:
        """Atoms it holds now; ``size_in_words``: the same in words."""
        ...

    @property
    def size_in_words(self) -> str: ...
    @property
    def metrics(self) -> Mapping[str, float | str]:
        """Every number of the latest report."""
        ...

    def has_passed(self, every: int) -> bool:
        """Tell whether the latest report stands on a multiple of ``every`` steps, or has passed one."""
        ...

    def training_s(self, now: float) -> float:
        """Return the seconds this trial has trained, over all incarnations."""
        ...


class View(Protocol):
    """One search, to be read (``core/state.py``): its rules, its trials, and what is free."""

    @property
    def rules(self) -> Rules: ...
    @property
    def trials(self) -> Mapping[int, TrialView]:
        """Every trial so far by number, also those that have ended."""
        ...

    @property
    def live(self) -> Mapping[int, TrialView]:
        """The trials that are starting, running or leaving."""
        ...

    @property
    def paused(self) -> Mapping[int, TrialView]: ...
    @property
    def now(self) -> float:
        """Seconds since the search began; ``time_left_s``: until its deadline."""
        ...

    @property
    def time_left_s(self) -> float: ...
    @property
    def atoms_total(self) -> int:
        """Atoms that can be used at all."""
        ...

    @property
    def atoms_free(self) -> int: ...
    @property
    def atoms_coming(self) -> int:
        """Atoms that come free as soon as their trial has left, or their release is confirmed."""
        ...

    @property
    def can_draw(self) -> bool:
        """Whether there is another configuration to start."""
        ...

    @property
    def awaits_configuration(self) -> bool:
        """Whether the sampler has been asked for a configuration and has not answered."""
        ...

    @property
    def draws_left(self) -> float:
        """Configurations that can still be started, as far as is known; infinite where no end is near."""
        ...

    @property
    def wake_at(self) -> float | None:
        """The time last asked for with ``WakeAt`` that has not come; None: none is awaited."""
        ...

    @property
    def longest_training_s(self) -> float:
        """Training time of the trial that has had most of it."""
        ...

    @property
    def step_on_one_atom_s(self) -> float | None:
        """Ta, the median time of a step on one atom; None before the first step."""
        ...

    @property
    def overhead_s(self) -> float:
        """To, the median time from a launch or resize to its first step; 0 while unknown."""
        ...

    def rank_among_live(self, trial: TrialView) -> int:
        """Return 0 for the live trial with the best latest score; equal scores by age."""
        ...

    def paused_by_score(self) -> Iterable[TrialView]:
        """Return paused trials, the best latest score first."""
        ...

    def speedup(self, atoms: int) -> float:
        """Return s(a), the throughput of a trial on so many atoms relative to one atom."""
        ...


# ---------------------------------------------------------------- what it is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options that every policy has. ``R``: steps after which a trial is complete (None: never)."""

    R: int | None = None

    def problems(self) -> Iterator[BadOption]:
        """Yield each option that is wrong in itself or beside another: (option, what is wrong and what to do)."""
        if self.R is not None and self.R < 1:
            yield "R", f"must be at least 1 step, not {self.R}"


class Policy(ABC):
    """Decides who trains with how many atoms. Two questions must be answered; everything else has a default.

    A policy keeps what it likes in its own attributes, but reads no clock, no file and no unseeded random number: the
    same questions must get the same answers when a journal is replayed. A decision that no longer fits is dropped.
    """

    #: Name in messages; a policy of a user's own that gives none is called like its class.
    name: ClassVar[str] = ""
    options_type: ClassVar[type[Any]] = Options
    #: ``R`` becomes the length of the script's own loop where the recipe does not give it.
    options: Any
    #: The rungs at which trials are compared, lowest first: for people.
    rungs: Sequence[Rung] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Answer a report of a live trial; ``trial.step`` and ``trial.score`` are up to date."""

    @abstractmethod
    def on_capacity(self, view: View) -> Sequence[Decision]:
        """Say what to do with free atoms. Asked again until the answer is empty or no atoms are left."""

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Answer that a trial has come to rest, paused or final, for whatever reason."""
        return NOTHING

    def on_wake(self, view: View) -> Sequence[Decision]:
        """Answer that the time asked for with ``WakeAt`` has come, or that the search continues after its end.

        Trials that ended with the search are told by ``on_exit`` after that.
        """
        return NOTHING

    def on_forecast(
        self, view: View, trial: TrialView, step: int, forecast: Mapping[str, float]
    ) -> Sequence[Decision]:
        """Answer the forecast that ``AskForecast`` asked for at ``step``."""
        return NOTHING

    # ------------------------------------------------------------ for people

    def problems(self, rules: Rules, atoms: int) -> Iterator[BadOption]:
        """Yield options that make no sense in this search on so many atoms, before it starts."""
        return iter(())

    def notes(self, view: View) -> Sequence[str]:
        """Return one or two lines about the search as a whole, for the dashboard."""
        return ()

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        """Return why the trial is where it is, in sentences."""
        return ()

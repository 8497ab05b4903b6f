"""The seam to policies: what a policy sees (``View``, ``TrialView``), and what it is asked (``Policy``).

A view refuses every change: assigning to an attribute of it raises AttributeError. Answers are decisions as values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gpusched.core.decisions import Decision, Start
from gpusched.core.rules import Rules
from gpusched.core.rung import Rung
from gpusched.core.trial import Curve, TrialRecord, TrialState

if TYPE_CHECKING:
    from gpusched.core.state import State

#: End of the reason of a ``Stop`` for a trial that has no time for another step: the deadline ends that trial.
NO_STEP_FITS = "another step would not end before the deadline"
NOTHING: tuple[Decision, ...] = ()
#: An option and what is wrong with its value, with what to do about it.
BadOption = tuple[str, str]


def _shown(path: str) -> Any:
    """A property that reads and cannot be set; ``attrgetter`` makes it as quick as Python allows."""
    return property(attrgetter(path))


class TrialView:
    """One trial, to be read. Times in seconds since the experiment began."""

    __slots__ = ("_trial",)

    def __init__(self, trial: TrialRecord) -> None:
        self._trial = trial

    id: Final[int] = _shown("_trial.id")
    hparams: Final[Mapping[str, object]] = _shown("_trial.hparams")
    #: Value that the policy gave ``Start(tag=..)`` for this trial.
    tag: Final[Any] = _shown("_trial.tag")

    state: Final[TrialState] = _shown("_trial.state")
    is_live: Final[bool] = _shown("_trial.is_live")
    is_final: Final[bool] = _shown("_trial.is_final")
    #: Whether it has been asked to leave and come back with other atoms.
    is_resizing: Final[bool] = _shown("_trial.is_resizing")
    #: Whether a person paused the trial: leave it alone.
    held_by_user: Final[bool] = _shown("_trial.held_by_user")
    #: Atoms it holds now, as a number and in words; launches so far.
    atoms: Final[int] = _shown("_trial.atoms")
    size_in_words: Final[str] = _shown("_trial.size_in_words")
    incarnation: Final[int] = _shown("_trial.incarnation")

    #: Latest report. ``metric`` is None and ``score`` minus infinity where it was not finite; more score is better.
    step: Final[int] = _shown("_trial.step")
    #: Steps since the report before, or since the checkpoint: 1 where a script reports every step.
    stride: Final[int] = _shown("_trial.stride")
    metric: Final[float | None] = _shown("_trial.metric")
    score: Final[float] = _shown("_trial.score")
    metrics: Final[Mapping[str, float | str]] = _shown("_trial.report.metrics")
    best_score: Final[float] = _shown("_trial.best_score")
    best_step: Final[int] = _shown("_trial.best_step")
    #: (step, metric) of every report so far.
    curve: Final[Curve] = _shown("_trial.curve")
    #: Step of the newest committed checkpoint (0: none), and how long saving it held the trial up.
    saved_step: Final[int] = _shown("_trial.saved_step")
    save_s: Final[float] = _shown("_trial.save_s")

    steps_since_resize: Final[int] = _shown("_trial.steps_since_resize")
    step_time_s: Final[float | None] = _shown("_trial.step_time_s")
    #: When the present incarnation came up; None while none is up.
    up_at: Final[float | None] = _shown("_trial.up_at")

    def has_passed(self, every: int) -> bool:
        """Tell whether the latest report stands on a multiple of ``every`` steps, or has passed one."""
        return self.step % every < self.stride

    def training_s(self, now: float) -> float:
        """Return the seconds this trial has trained, over all incarnations."""
        return self._trial.training_s(now)

    def __repr__(self) -> str:
        return f"<trial {self.id}: {self.state.value}, step {self.step}>"


class View:
    """One experiment, to be read: its rules, its trials, and what is free."""

    __slots__ = ("_made", "_state", "live", "paused", "trials")

    _state: State
    _made: dict[int, TrialView]
    #: Every trial so far by number, also those that have ended.
    trials: Mapping[int, TrialView]
    #: Numbers of the trials that are starting, running or leaving, and of those that are paused.
    live: Set[int]
    paused: Set[int]

    def __init__(self, state: State) -> None:
        made: dict[int, TrialView] = {}
        attributes = {
            "_state": state,
            "_made": made,
            "trials": MappingProxyType(made),
            "live": state.live.keys(),
            "paused": state.paused.keys(),
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a policy may not set {name}: the view is to be read")

    def add(self, trial: TrialRecord) -> TrialView:
        """Show one more trial. For ``State`` alone."""
        view = self._made[trial.id] = TrialView(trial)
        return view

    rules: Final[Rules] = _shown("_state.rules")
    #: Seconds since the experiment began, and until its deadline.
    now: Final[float] = _shown("_state.now")
    time_left_s: Final[float] = _shown("_state.time_left_s")
    #: Atoms that can be used at all, and those that are free now.
    atoms_total: Final[int] = _shown("_state.atoms_total")
    atoms_free: Final[int] = _shown("_state.atoms_free")
    #: Whether there is another configuration to start.
    can_draw: Final[bool] = _shown("_state.can_draw")
    #: Configurations that can still be started, as far as is known; infinite where no end is near.
    draws_left: Final[float] = _shown("_state.draws_left")
    #: Training time of the trial that has had most of it.
    longest_training_s: Final[float] = _shown("_state.longest_training_s")
    #: Ta, the median time of a step on one atom; None before the first step.
    step_on_one_atom_s: Final[float | None] = _shown("_state.speed.step_on_one_atom_s")
    #: To, the median time from a launch or resize to its first step; 0 while unknown.
    overhead_s: Final[float] = _shown("_state.speed.overhead")

    @property
    def awaits_configuration(self) -> bool:
        """Whether the sampler has been asked for a configuration and has not answered."""
        return self._state.configurations.asked_for is not None

    @property
    def wake_at(self) -> float | None:
        """The time last asked for with ``WakeAt`` that has not come; None: none is awaited."""
        return self._state.timers.get("wake")

    @property
    def atoms_coming(self) -> int:
        """Atoms that come free as soon as their trial has left, or their release is confirmed."""
        return self._state.atoms_coming

    def rank_among_live(self, trial: TrialView) -> int:
        """Return 0 for the live trial with the best latest score; equal scores by age."""
        return self._state.rank_among_live(trial._trial)

    def live_by_score(self) -> Iterator[TrialView]:
        """Return live trials, the best latest score first."""
        return (self._made[trial.id] for trial in self._state.live_by_score())

    def paused_by_score(self) -> Iterator[TrialView]:
        """Return paused trials, the best latest score first."""
        return (self._made[trial.id] for trial in self._state.paused_by_score())

    def speedup(self, atoms: int) -> float:
        """Return s(a), the throughput of a trial on so many atoms relative to one atom."""
        return self._state.speed.s(atoms)


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

    def on_start(self, view: View, trial: TrialView) -> None:  # noqa: B027 - a default, not an abstract method
        """Note that a ``Start`` has made this trial; ``trial.tag`` is the tag of that ``Start``."""

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Answer that a trial has come to rest, paused or final, for whatever reason."""
        return NOTHING

    def on_wake(self, view: View) -> Sequence[Decision]:
        """Answer that the time asked for with ``WakeAt`` has come."""
        return NOTHING

    def on_tried(self, view: View) -> Sequence[Decision]:
        """Start the configuration that a person asked for; asked while atoms are free."""
        return (Start(view.rules.smallest, "a person asked for it"),)

    def on_reopen(self, view: View) -> Sequence[Decision]:
        """Answer that the search goes on after its end; what ended with it is told by ``on_exit`` after this."""
        return NOTHING

    def on_forecast(
        self, view: View, trial: TrialView, step: int, forecast: Mapping[str, float]
    ) -> Sequence[Decision]:
        """Answer the forecast that ``AskForecast`` asked for at ``step``."""
        return NOTHING

    # ------------------------------------------------------------ for people

    def problems(self, rules: Rules, atoms: int) -> Iterator[BadOption]:
        """Yield options that make no sense in this experiment on so many atoms, before it starts."""
        return iter(())

    def foreword(self, rules: Rules, atoms: int) -> Sequence[str]:
        """Return what a person should know before the experiment starts."""
        return ()

    def notes(self, view: View) -> Sequence[str]:
        """Return one or two lines about the search as a whole, for the dashboard."""
        return ()

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        """Return why the trial is where it is, in sentences."""
        return ()

    def rungs(self, view: View) -> Sequence[Rung]:
        """Return the rungs at which trials are compared, lowest first."""
        return ()

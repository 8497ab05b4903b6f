"""The seam to policies: what a policy sees (``View``), what it decides (in atoms), and what it is asked (``Policy``).

Answers are decisions as values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from gpusched.core.rules import Rules
from gpusched.core.state import State
from gpusched.core.trial import TrialRecord

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
    """Continue with a paused trial."""

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
class LeaveFree:
    """Give the free atoms to nobody now, and say why; without figures, as idle time is counted by reason."""

    why: str


Decision = Start | Resume | Resize | Pause | Stop | Complete | WakeAt | LeaveFree
NOTHING: tuple[Decision, ...] = ()

#: What a policy sees: the search and its trials as they are, to be read and never changed.
View: TypeAlias = State
TrialView: TypeAlias = TrialRecord

# ---------------------------------------------------------------- what it is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options that every policy has.

    ``R``: steps after which a trial is complete; None: as many as its script's own loop has.
    """

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

    options_type: ClassVar[type[Any]] = Options
    #: Where the recipe does not give ``R``, it becomes the length of the longest loop that a script has told of.
    options: Any

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Respond to a report of a live trial; ``trial.step`` and ``trial.score`` are up to date."""

    @abstractmethod
    def on_capacity(self, view: View) -> Sequence[Decision]:
        """Say what to do with free atoms. Asked again until the answer is empty or too few are left for any trial."""

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Respond to a trial that has come to rest, paused or final, for whatever reason."""
        return NOTHING

    def on_wake(self, view: View) -> Sequence[Decision]:
        """Respond when the time asked for with ``WakeAt`` has come, or when the search continues after its end.

        Trials that ended with the search are told by ``on_exit`` after that.
        """
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

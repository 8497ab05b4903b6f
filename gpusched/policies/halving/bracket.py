"""One bracket of synchronous successive halving (HyperSched, SoCC'19, 3.2): for ``sha`` and ``hyperband``.

A bracket is a series of halvings. In each, its trials train to a milestone and wait there; when all are in, the best
floor(n/eta) go on to the next one and the others are out. The end of a halving is the only point where anything is
decided: a bracket holds state, the policies turn it into decisions.

A trial that has failed, or that a person stopped or holds, does not count: it must not block a halving for ever. One
that comes back while the halving is still open takes part after all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpusched.core.decisions import TrialView, View
from gpusched.core.rung import Rung
from gpusched.core.trial import NEVER, TrialState


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of a bracket: how many trials train up to which step, halving by halving."""

    name: str
    sizes: tuple[int, ...]
    milestones: tuple[int, ...]


@dataclass(slots=True)
class Halving:
    """One halving: trials still to come, and those that are in with their scores."""

    rung: Rung
    #: Given a place, and neither in nor out.
    coming: set[int] = field(default_factory=set)
    #: Dropped, but not out for good.
    left_out: set[int] = field(default_factory=set)


class Bracket:
    """A running bracket. Trials are entered by number, ``arrive`` and are dropped; ``advance`` ends a halving."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._place = 0
        self.rungs: list[Rung] = []
        self.now = self._open()
        self.entered = 0
        #: No more configurations: fewer trials than planned take part.
        self.is_full = False
        self.is_over = False
        #: Trials to be given atoms, in this order: winners of the last halving, and trials that lost theirs. Each is
        #: in it once, and taking out one that is not in it changes nothing: trials leave by more ways than one.
        self._line: OrderedDict[int, None] = OrderedDict()

    def _open(self) -> Halving:
        halving = Halving(Rung(self.shape.milestones[self._place]))
        self.rungs.append(halving.rung)
        return halving

    @property
    def milestone(self) -> int:
        return self.now.rung.milestone

    @property
    def is_last_halving(self) -> bool:
        return self._place + 1 == len(self.shape.milestones)

    @property
    def wants_new(self) -> bool:
        return self._place == 0 and not self.is_full and self.entered < self.shape.sizes[0]

    # ------------------------------------------------------------ trials come and go

    def enter(self, trial: int) -> None:
        """Note that a new configuration was started for this bracket."""
        self.entered += 1
        self.now.coming.add(trial)

    def launched(self, trial: int) -> None:
        """Note that a trial that waited for atoms was given some, or has them still."""
        self._line.pop(trial, None)
        self.now.coming.add(trial)

    def is_waiting(self, trial: int) -> bool:
        """Tell whether the trial is to be given atoms for the present halving."""
        return trial in self._line

    @property
    def has_waiting(self) -> bool:
        return bool(self._line)

    def comes_first(self, trial: int) -> None:
        """Put the trial first in line for atoms."""
        self._line[trial] = None
        self._line.move_to_end(trial, last=False)

    def takes_part(self, trial: int) -> bool:
        """Tell whether the present halving is open to this trial."""
        return not self.is_over and (trial in self.now.coming or trial in self.now.left_out)

    def arrive(self, trial: TrialView) -> None:
        """Record that a trial that takes part is at the milestone."""
        self.now.coming.discard(trial.id)
        self.now.left_out.discard(trial.id)
        self.now.rung.record(trial.id, trial.score)
        # A person may have let it go on before its turn: it must not be given atoms for this halving again.
        self._line.pop(trial.id, None)

    def drop(self, trial: int) -> None:
        """Let the halving go on without a trial, unless it comes before the others are in."""
        if trial in self.now.coming:
            self.now.coming.remove(trial)
            self.now.left_out.add(trial)

    def next_waiting(self, view: View) -> TrialView | None:
        """Return the next trial to be given atoms; drop trials that cannot run any more or that a person holds."""
        for number in list(self._line):
            trial = view.trials[number]
            if trial.state is TrialState.PAUSED and not trial.held_by_user:
                return trial
            if trial.state is TrialState.YIELDING:
                self._line.move_to_end(number)
                continue
            self._line.pop(number, None)
            if not trial.is_live:
                self.drop(number)
        return None

    # ------------------------------------------------------------ the end of a halving

    @property
    def is_complete(self) -> bool:
        """Whether every trial that takes part in this halving is in."""
        return not self.now.coming and not self.wants_new

    def advance(self) -> tuple[Sequence[int], bool]:
        """End the halving and move the winners on; return the losers, and whether the bracket is over."""
        rung = self.now.rung
        ranked = list(rung.top(len(rung)))
        count = 0 if self.is_last_halving else self.shape.sizes[self._place + 1]
        winners = [trial for trial in ranked[:count] if rung.score(trial) > NEVER]
        if not winners:
            self.is_over = True
            self._line.clear()
            return ranked, True
        self._place += 1
        self.now = self._open()
        self.now.coming = set(winners)
        self._line = OrderedDict.fromkeys(winners)
        return ranked[len(winners) :], False


def shrinking(first: int, eta: float, count: int) -> Iterator[int]:
    """first, floor(first/eta), floor(first/eta^2), ..: at least one."""
    for power in range(count):
        yield max(1, int(first / eta**power + 1e-9))

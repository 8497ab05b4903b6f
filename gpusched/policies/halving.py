"""One bracket of synchronous successive halving (HyperSched, SoCC'19, 3.2): for ``sha`` and ``hyperband``.

A bracket is a series of halvings. In each, its trials train to a milestone and wait there; when all are in, the best
floor(n/eta) go on to the next one and the others are out. The end of a halving is the only point where anything is
decided: a bracket holds state, the policies turn it into decisions.

Who does not arrive must not block a halving for ever:

* a trial that has failed, or that a person stopped or holds, does not count any more;
* once half of the others are in, a *straggler* that has had its atoms for ``patience`` times their median time is left
  out. Who was left out but comes while the halving is still open takes part after all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpusched.core.rung import Rung
from gpusched.core.speed import RunningMedian
from gpusched.core.state import State
from gpusched.core.trial import NEVER, Trial, TrialState


@dataclass(frozen=True, slots=True)
class Plan:
    """A bracket before it begins: how many trials train up to which step, halving by halving."""

    name: str
    sizes: tuple[int, ...]
    milestones: tuple[int, ...]


@dataclass(slots=True)
class Halving:
    """One halving: who is still to come, and who is in with which score."""

    rung: Rung
    #: Given a place, and neither in nor out. The value: when it was given atoms; None: it waits for them.
    coming: dict[int, float | None] = field(default_factory=dict)
    #: Dropped, but not out for good.
    left_out: set[int] = field(default_factory=set)
    times_s: RunningMedian = field(default_factory=RunningMedian)
    #: How many came from being given atoms to being in.
    timed: int = 0


class Bracket:
    """A running bracket. Trials are entered by number, ``arrive`` and are dropped; ``advance`` ends a halving."""

    def __init__(self, plan: Plan, eta: float) -> None:
        self.plan = plan
        self._eta = eta
        self._place = 0
        self.rungs: list[Rung] = []
        self.now = self._open()
        self.entered = 0
        #: No more configurations: fewer trials than planned take part.
        self.is_full = False
        self.is_over = False
        #: Winners of the last halving and trials that lost their atoms, in the order in which they go on.
        self.waiting: deque[int] = deque()

    def _open(self) -> Halving:
        halving = Halving(Rung(self.plan.milestones[self._place]))
        self.rungs.append(halving.rung)
        return halving

    @property
    def milestone(self) -> int:
        return self.now.rung.milestone

    @property
    def is_last_halving(self) -> bool:
        return self._place + 1 == len(self.plan.milestones)

    @property
    def wants_new(self) -> bool:
        return self._place == 0 and not self.is_full and self.entered < self.plan.sizes[0]

    # ------------------------------------------------------------ trials come and go

    def enter(self, trial: int, now_s: float) -> None:
        """A new configuration was started for this bracket."""
        self.entered += 1
        self.now.coming[trial] = now_s

    def launched(self, trial: int, now_s: float) -> None:
        """A trial that waited was given atoms."""
        self.now.coming[trial] = now_s

    def takes_part(self, trial: int) -> bool:
        """Whether the present halving is open to this trial."""
        return not self.is_over and (trial in self.now.coming or trial in self.now.left_out)

    def arrive(self, trial: Trial, now_s: float) -> None:
        """A trial that takes part is at the milestone."""
        began = self.now.coming.pop(trial.id, None)
        if began is not None:
            self.now.times_s.add(now_s - began)
            self.now.timed += 1
        self.now.left_out.discard(trial.id)
        self.now.rung.record(trial.id, trial.score)
        if trial.id in self.waiting:
            # A person let it go on before its turn: it is in, and must not be given atoms for this halving again.
            self.waiting.remove(trial.id)

    def drop(self, trial: int) -> None:
        """The halving goes on without it, unless it comes before the others are in."""
        if trial in self.now.coming:
            del self.now.coming[trial]
            self.now.left_out.add(trial)

    def goes_on(self, trial: int, now_s: float) -> None:
        """A winner that was the last to arrive need not wait."""
        self.waiting.remove(trial)
        self.launched(trial, now_s)

    def next_waiting(self, state: State) -> Trial | None:
        """Who is to be given atoms next. Who cannot run any more, or is held by a person, is dropped."""
        for _ in range(len(self.waiting)):
            trial = state.trials[self.waiting[0]]
            if trial.state is TrialState.PAUSED and not trial.held_by_user:
                return trial
            self.waiting.popleft()
            if trial.state is TrialState.YIELDING:
                self.waiting.append(trial.id)
            elif not trial.is_live:
                self.drop(trial.id)
        return None

    # ------------------------------------------------------------ the end of a halving

    @property
    def is_complete(self) -> bool:
        """Whether everybody who takes part in this halving is in."""
        return not self.now.coming and not self.wants_new

    def advance(self) -> tuple[Sequence[int], bool]:
        """End the halving: the winners move on. Who is out, and whether the bracket is over."""
        rung = self.now.rung
        ranked = list(rung.top(len(rung)))
        count = 0 if self.is_last_halving else self.plan.sizes[self._place + 1]
        winners = [trial for trial in ranked[:count] if rung.score(trial) > NEVER]
        if not winners:
            self.is_over = True
            self.waiting.clear()
            return ranked, True
        self._place += 1
        self.now = self._open()
        self.now.coming = dict.fromkeys(winners)
        self.waiting = deque(winners)
        return ranked[len(winners) :], False

    # ------------------------------------------------------------ stragglers

    def limit_s(self, patience: float) -> float | None:
        """How long a trial may take for this halving; None while fewer than half are in."""
        median_s = self.now.times_s.value
        if not median_s or self.now.timed < len(self.now.coming):
            return None
        return patience * median_s

    def stragglers(self, state: State, patience: float) -> tuple[list[int], float | None]:
        """Who has taken too long by now, and when the next one will have."""
        limit = self.limit_s(patience)
        if limit is None or self.wants_new:
            return [], None
        late, next_at = [], None
        for trial, began in self.now.coming.items():
            if began is None or trial not in state.live:
                continue
            due = began + limit
            if due <= state.now:
                late.append(trial)
            elif next_at is None or due < next_at:
                next_at = due
        return late, next_at


def shrinking(first: int, eta: float, count: int) -> Iterator[int]:
    """first, floor(first/eta), floor(first/eta^2), ..: at least one."""
    for power in range(count):
        yield max(1, int(first / eta**power + 1e-9))

"""A rung: a milestone and the score each trial had when it first came to it.

HyperSched (SoCC'19) section 3.3 and Algorithms 1 to 3. A score is recorded once for each trial; the order within a rung
is kept in a sorted list, so that a rank costs O(log n) and the cut-off O(1) until the next record.

Equal scores: the trial recorded first ranks better, so that ranks are total and repeat exactly; ``fails`` compares
scores, so ties are kept together.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from sortedcontainers import SortedList


class Rung:
    """Scores recorded at one milestone (in steps). More is better; ``-inf`` is a metric that was not finite."""

    __slots__ = (
        "_arrivals",
        "_cutoff",
        "_newest_rung",
        "_order",
        "_scores",
        "_waiting",
        "eta",
        "milestone",
    )

    def __init__(
        self, milestone: int, eta: float, newest_rung: dict[int, Rung] | None = None
    ) -> None:
        self.milestone, self.eta = milestone, eta
        #: The rung that each trial was recorded in last, shared by all rungs of a ladder.
        self._newest_rung: dict[int, Rung] = {} if newest_rung is None else newest_rung
        self._scores: dict[int, float] = {}
        #: (-score, arrival, trial), ascending: the best first.
        self._order: SortedList[tuple[float, int, int]] = SortedList()
        self._arrivals: dict[int, int] = {}
        #: Entries of the order whose trials are paused here and wait to be promoted.
        self._waiting: SortedList[tuple[float, int, int]] = SortedList()
        self._cutoff: float | None = None

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, trial: int) -> bool:
        return trial in self._scores

    def record(self, trial: int, score: float) -> bool:
        """Record the score of a trial; False, and nothing changes, if it has one here already."""
        if trial in self._scores:
            return False
        arrival = len(self._order)
        self._order.add((-score, arrival, trial))
        self._scores[trial], self._arrivals[trial] = score, arrival
        self._newest_rung[trial] = self
        self._cutoff = None
        return True

    def score(self, trial: int) -> float:
        return self._scores[trial]

    def cutoff(self) -> float:
        """Return the score of the ceil(n/eta)-th best, which a trial needs to be kept (Algorithm 3, line 18)."""
        if self._cutoff is None:
            place = max(1, math.ceil(len(self._order) / self.eta))
            self._cutoff = -self._order[place - 1][0] if self._order else -math.inf
        return self._cutoff

    @property
    def places(self) -> int:
        """Number of trials that are promoted from here, floor(n/eta) (Algorithm 1, line 20; Algorithm 2, line 10)."""
        return int(len(self._order) // self.eta)

    def fails(self, trial: int) -> bool:
        """Tell whether the trial was recorded here and is not among the best ceil(n/eta) of the n; ties are."""
        score = self._scores.get(trial)
        return score is not None and score < self.cutoff()

    def wait(self, trial: int) -> None:
        """Note that the trial is paused, and that this is the last rung it was recorded in."""
        entry = (-self._scores[trial], self._arrivals[trial], trial)
        if entry not in self._waiting:
            self._waiting.add(entry)

    def promotable(self, paused: Container[int]) -> Iterator[int]:
        """Yield waiting trials among the best floor(n/eta), the best first (Algorithm 1, lines 20 and 21).

        Trials that are not in ``paused`` any more, or were recorded in a higher rung since, are forgotten on the way;
        ``wait`` brings them back. So a promotion costs O(log n), however many of the best have been promoted before.
        """
        limit, place = self.places, 0
        while place < len(self._waiting):
            entry = self._waiting[place]
            if entry[2] not in paused or self._newest_rung[entry[2]] is not self:
                del self._waiting[place]
                continue
            if self._order.index(entry) >= limit:
                return
            place += 1
            yield entry[2]

    def top(self, count: int) -> Iterator[int]:
        """Yield the best ``count`` trials, the best first."""
        return (trial for _, _, trial in self._order.islice(0, count))

    def rank(self, trial: int) -> int:
        """Return 0 for the best trial of this rung."""
        return int(self._order.index((-self._scores[trial], self._arrivals[trial], trial)))


def milestones(r: int, eta: float) -> Iterator[int]:
    """Yield r, r*eta, r*eta^2, ... without end; the same number never twice."""
    milestone = float(r)
    last = 0
    while True:
        if round(milestone) > last:
            last = round(milestone)
            yield last
        milestone *= eta


class Ladder:
    """The rungs of one search, at r, r*eta, ..: made as trials come to them."""

    __slots__ = ("_by_step", "_eta", "_milestones", "_newest_rung", "_next", "rungs")

    def __init__(self, r: int, eta: float) -> None:
        self._eta, self._milestones = eta, milestones(r, eta)
        self._next = next(self._milestones)
        self.rungs: list[Rung] = []
        self._newest_rung: dict[int, Rung] = {}
        self._by_step: dict[int, Rung] = {}

    def at(self, step: int, stride: int = 1) -> Rung | None:
        """Return the rung at this step or, where a report stands for several steps, the highest that it has passed."""
        while self._next <= step:
            rung = self._by_step[self._next] = Rung(self._next, self._eta, self._newest_rung)
            self.rungs.append(rung)
            self._next = next(self._milestones)
        if stride == 1:
            return self._by_step.get(step)
        passed = (rung for rung in reversed(self.rungs) if rung.milestone <= step)
        highest = next(passed, None)
        return highest if highest is not None and highest.milestone > step - stride else None

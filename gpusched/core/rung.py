"""A rung: a milestone and the score each trial had when it first came to it.

HyperSched (SoCC'19) section 3.3 and Algorithms 1 to 3. A score is recorded once for each trial; the order within a rung
is kept in a sorted list, so that a rank costs O(log n).

Equal scores: the trial recorded first ranks better, so that ranks are total and repeat exactly. ``fails`` keeps ties
together, but for the worst: models that have collapsed share one accuracy, and would all be kept.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from sortedcontainers import SortedList

#: (-score, arrival, trial): in ascending order the best trial is the first.
Entry = tuple[float, int, int]


class Rung:
    """Scores recorded at one milestone (in steps). More is better; ``-inf`` is a metric that was not finite."""

    def __init__(self, milestone: int, eta: float, newest_rung: dict[int, Rung]) -> None:
        """``newest_rung``: the rung that each trial was recorded in last, shared by all rungs of a ladder."""
        self.milestone, self.eta, self._newest_rung = milestone, eta, newest_rung
        self._entries: dict[int, Entry] = {}
        self._order: SortedList[Entry] = SortedList()
        #: Entries of trials that may be promoted from here, once they are paused.
        self._candidates: SortedList[Entry] = SortedList()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, trial: int) -> bool:
        return trial in self._entries

    def record(self, trial: int, score: float) -> bool:
        """Record the score of a trial; False, and nothing changes, if it has one here already."""
        if trial in self._entries:
            return False
        entry = self._entries[trial] = (-score, len(self._order), trial)
        self._order.add(entry)
        self._candidates.add(entry)
        self._newest_rung[trial] = self
        return True

    def score(self, trial: int) -> float:
        return -self._entries[trial][0]

    def cutoff(self) -> float:
        """Return the score of the ceil(n/eta)-th best, which a trial needs to be kept (Algorithm 3, line 18)."""
        place = math.ceil(len(self._order) / self.eta)
        return float(-self._order[place - 1][0])

    @property
    def places(self) -> int:
        """Number of trials that are promoted from here, floor(n/eta) (Algorithm 1, line 20; Algorithm 2, line 10)."""
        return int(len(self._order) / self.eta + 1e-9)  # 11 // 1.1 is 9

    def fails(self, trial: int) -> bool:
        """Tell whether the trial was recorded here and is not among the best ceil(n/eta) of the n.

        Ties are, but not of the worst score where another is better.
        """
        if trial not in self._entries:
            return False
        order, mine = self._order, self._entries[trial]
        last: Entry = order[math.ceil(len(order) / self.eta) - 1]
        is_worst = order[0][0] < last[0] == order[-1][0]
        return mine > last if is_worst else mine[0] > last[0]

    def promotable(self, paused: Container[int]) -> Iterator[int]:
        """Yield paused trials among the best floor(n/eta), the best first (Algorithm 1, lines 20 and 21).

        Trials that were recorded in another rung since are forgotten on the way. So a promotion costs O(log n), however
        many of the best have been promoted before.
        """
        limit, place = self.places, 0
        while place < len(self._candidates):
            entry = self._candidates[place]
            trial = entry[2]
            if self._newest_rung[trial] is not self:
                del self._candidates[place]
                continue
            place += 1
            if trial in paused:
                if self._order.index(entry) >= limit:
                    return
                yield trial

    def rank(self, trial: int) -> int:
        """Return 0 for the best trial of this rung."""
        return int(self._order.index(self._entries[trial]))


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

    def __init__(self, r: int, eta: float) -> None:
        self._eta, self._milestones = eta, milestones(r, eta)
        self._next = next(self._milestones)
        self.rungs: list[Rung] = []
        self._newest_rung: dict[int, Rung] = {}

    def at(self, step: int, stride: int = 1) -> Rung | None:
        """Return the rung at this step or, where a report stands for several steps, the highest that it has passed."""
        while self._next <= step:
            self.rungs.append(Rung(self._next, self._eta, self._newest_rung))
            self._next = next(self._milestones)
        passed = (one for one in reversed(self.rungs) if step - stride < one.milestone <= step)
        return next(passed, None)

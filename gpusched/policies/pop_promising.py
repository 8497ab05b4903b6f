"""Promising trials, their number and their order: section 3.2 of HyperDrive (Middleware'17), for ``pop``.

Trials are kept in the order of their p, so that a rank costs O(log n). S_desired grows with every trial further down
that order and S_deserved falls, so the best threshold is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedList


@dataclass(frozen=True, slots=True)
class Known:
    """Forecast of a trial: p, the expected remaining time, and the step at which it was made."""

    p: float
    ert_s: float
    step: int


class Confidence:
    """The p of every trial that is under way, and the threshold between promising and not."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        #: (-p, expected remaining time, trial): the most promising first.
        self._order: SortedList[tuple[float, float, int]] = SortedList()
        #: Number of promising trials, and their least p.
        self.count = 0
        self.threshold = 1.0

    def __len__(self) -> int:
        return len(self._order)

    def known(self, trial: int) -> Known | None:
        return self._known.get(trial)

    def of(self, trial: int) -> float:
        """Return p of a trial that was extrapolated."""
        return self._known[trial].p

    def set(self, trial: int, p: float, ert_s: float, step: int) -> None:
        self.forget(trial)
        self._known[trial] = Known(p, ert_s, step)
        self._order.add((-p, ert_s, trial))

    def forget(self, trial: int) -> None:
        known = self._known.pop(trial, None)
        if known is not None:
            self._order.remove((-known.p, known.ert_s, trial))

    def split(self, slots: int) -> None:
        """Choose the p that maximises S_effective(p) = min(S_desired(p), S_deserved(p)); one slot a promising trial.

        With trials ordered by p, the i-th has S_desired = i and S_deserved = slots * p_i: the maximum is at the last i
        with S_desired <= S_deserved or at the one after it.
        """
        low, high = 0, len(self._order)
        while low < high:
            middle = (low + high + 1) // 2
            if middle <= slots * self._p_at(middle):
                low = middle
            else:
                high = middle - 1
        effective, place = float(low), low
        if low < len(self._order) and slots * self._p_at(low + 1) > effective:
            effective, place = slots * self._p_at(low + 1), low + 1
        self.count = int(effective + 1e-9)
        self.threshold = self._p_at(place) if place else 1.0

    def _p_at(self, place: int) -> float:
        """Return p of the trial at this place, from 1."""
        return -float(self._order[place - 1][0])

    def promising(self) -> Iterator[int]:
        """Yield promising trials, the one with the highest p first."""
        return (trial for _, _, trial in self._order.islice(0, self.count))

    def is_promising(self, trial: int) -> bool:
        known = self._known.get(trial)
        if known is None or not self.count:
            return False
        return bool(self._order.index((-known.p, known.ert_s, trial)) < self.count)

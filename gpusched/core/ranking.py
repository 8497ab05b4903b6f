"""Live trials by their latest score, put in order only when somebody asks.

Every report changes a score, and with many atoms few reports need the order: most of the cost of a report would go into
keeping it. A question after k changed scores costs O(min(k, n) log n), a changed score O(1).
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from gpusched.core.trial import Trial


class Ranking:
    """The best first; equal scores by age."""

    __slots__ = ("_changed", "_order", "_placed")

    def __init__(self) -> None:
        #: (-score, trial) as of when the order was last asked for; each trial's entry in it; whose has changed since.
        self._order: SortedList[tuple[float, int]] = SortedList()
        self._placed: dict[int, tuple[float, int]] = {}
        self._changed: dict[int, Trial] = {}

    def touch(self, trial: Trial) -> None:
        """The trial is new here, or its score has changed."""
        self._changed[trial.id] = trial

    def discard(self, trial: Trial) -> None:
        self._changed.pop(trial.id, None)
        entry = self._placed.pop(trial.id, None)
        if entry is not None:
            self._order.remove(entry)

    def rank(self, trial: Trial) -> int:
        """0 for the best."""
        self._settle()
        return int(self._order.index(self._placed[trial.id]))

    def __iter__(self) -> Iterator[int]:
        self._settle()
        return (trial for _, trial in self._order)

    def __len__(self) -> int:
        self._settle()
        return len(self._order)

    def _settle(self) -> None:
        if not self._changed:
            return
        for trial in self._changed.values():
            entry, before = (-trial.score, trial.id), self._placed.get(trial.id)
            if before != entry:
                if before is not None:
                    self._order.remove(before)
                self._order.add(entry)
                self._placed[trial.id] = entry
        self._changed.clear()

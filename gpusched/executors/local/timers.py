"""What is to be done later, by the clock of whoever asks. Cancelled by the action itself finding nothing to do."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from gpusched.executors.base import FOREVER


class Timers:
    """``now`` is the clock; actions due at the same time run in the order in which they were asked for."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else FOREVER

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self._now() + delay_s, next(self._count), action))

    def run_due(self) -> None:
        """What an action asks for anew runs in a later round, even with no delay."""
        now = self._now()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action()

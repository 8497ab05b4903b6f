"""``Shared``: the surroundings that every part of the executor works in; ``Timers``: actions to be done later."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from gpusched.executors.base import FOREVER
from gpusched.executors.hub import Hub
from gpusched.executors.local.incarnation import Roster
from gpusched.executors.local.settings import LaunchSettings
from gpusched.folder.paths import ExperimentPaths


class Timers:
    """Actions due at a time of the clock ``now``; those due at the same time run in the order they were asked for.

    An action is cancelled by finding nothing to do.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else FOREVER

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now() + delay_s, next(self._count), action))

    def run_due(self) -> None:
        """Run what is due; an action asked for meanwhile runs in a later round, even with no delay."""
        now = self.now()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """``say`` takes remarks; ``seq_of``: the number of the last report of a trial that the search knows."""

    paths: ExperimentPaths
    settings: LaunchSettings
    hub: Hub
    timers: Timers
    say: Callable[[str], None]
    seq_of: Callable[[int], int] = lambda _trial: 0
    roster: Roster = field(default_factory=Roster)

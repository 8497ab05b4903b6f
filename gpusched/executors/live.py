"""The parts of an executor on devices that exist which do not depend on where its trials run: timers and ``poll``."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from gpusched.core.events import Event
from gpusched.executors.base import Setting
from gpusched.executors.best import BestKeeper

_TURN_LIMIT_S = 3600.0


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
        return self._heap[0][0] if self._heap else float("inf")

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


class LiveBase:
    """Base of executors on devices that exist."""

    def __init__(self, setting: Setting) -> None:
        self.now = setting.clock
        self._setting = setting
        self._paths = setting.paths
        self._hub = setting.hub
        self._timers = Timers(setting.clock)
        #: Events that no ``poll`` has returned yet.
        self._events: list[Event] = []
        self._best = BestKeeper(setting, self._timers.after)

    def poll(self, until: float) -> Sequence[Event]:
        """See ``Executor.poll``. Also returns when somebody rang at the hub."""
        self._timers.run_due()
        while not self._events:
            if self._turn(until) or self.now() >= until:
                break
        return self._told()

    def _turn(self, until: float) -> bool:
        """Wait for one thing to happen; True if somebody rang."""
        next_at = min(until, self._timers.next_at)
        rung = self._hub.turn(min(max(0.0, next_at - self.now()), _TURN_LIMIT_S))
        self._timers.run_due()
        return rung

    def _wait(self, limit_s: float, is_over: Callable[[], bool]) -> None:
        """Serve until something is over, at most for ``limit_s``."""
        until = self.now() + limit_s
        while not is_over() and self.now() < until:
            self._turn(until)

    def _told(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events

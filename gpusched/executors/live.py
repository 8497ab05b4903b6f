"""Parts of a live executor that do not depend on where its trials run: events, timers, turns of the hub, ``best/``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpusched.core.events import Event
from gpusched.executors.base import Setting
from gpusched.executors.best import BestKeeper
from gpusched.executors.hub import Timers

_TURN_LIMIT_S = 3600.0


class LiveBase:
    """Base of executors on devices that exist. ``atoms_of``: the number a trial has now, None if it has none."""

    def __init__(self, setting: Setting, atoms_of: Callable[[int], int | None]) -> None:
        self.now = setting.clock
        self._setting = setting
        self._paths = setting.paths
        self._hub = setting.hub
        self._timers = Timers(setting.clock)
        #: Events that no ``poll`` has returned yet.
        self._events: list[Event] = []
        self._best = BestKeeper(setting, self._timers.after, atoms_of)

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

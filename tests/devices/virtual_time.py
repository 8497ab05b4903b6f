"""A clock for threads: virtual seconds, one thread at a time, always in the same order.

The test's own thread drives: ``advance`` wakes whoever is due, one after the other, and waits until each has parked
again. Threads must wait and be started through the clock alone (``gpusched.devices.watch.Threads``). What is asked for
with ``after`` runs in the test's own thread.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


def _shut() -> threading.Lock:
    """A bare lock that one thread closes and another opens: a hand-over several times cheaper than a semaphore's."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class _Parked:
    due: float
    event: threading.Event | None
    go: threading.Lock = field(default_factory=_shut)


class VirtualClock:
    def __init__(self) -> None:
        self._now = 0.0
        self._parked: list[_Parked] = []
        self._baton = _shut()
        self._driver = threading.get_ident()
        self._errors: list[BaseException] = []
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.alive = 0

    def now(self) -> float:
        return self._now

    def spawn(self, target: Callable[[], None], name: str) -> None:
        start = _Parked(self._now, None)

        def body() -> None:
            start.go.acquire()
            try:
                target()
            except BaseException as error:
                self._errors.append(error)
            self.alive -= 1
            self._baton.release()

        self.alive += 1
        self._parked.append(start)
        threading.Thread(target=body, name=name, daemon=True).start()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if threading.get_ident() == self._driver:
            self._run(self._now + timeout_s, event.is_set)
        elif not event.is_set():
            self._park(_Parked(self._now + timeout_s, event))
        return event.is_set()

    def block(self, until: float) -> None:
        """For the fake driver: a call that takes so long."""
        if until > self._now:
            self._park(_Parked(until, None))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (self._now + delay_s, next(self._count), action))

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while self._actions and self._actions[0][0] <= until:
            self._run(self._actions[0][0], lambda: False)
            heapq.heappop(self._actions)[2]()
        self._run(until, lambda: False)

    def skip(self, seconds: float) -> None:
        """Let time pass while all stand still."""
        self._now += seconds

    def finish(self, limit_s: float = 1000.0) -> None:
        """Let the threads run until all have ended."""
        until = self._now + limit_s
        self._run(until, lambda: self.alive == 0)
        assert self.alive == 0, f"{self.alive} threads did not end"

    def _park(self, parked: _Parked) -> None:
        assert threading.get_ident() != self._driver, (
            "the test's own thread may not call the driver"
        )
        self._parked.append(parked)
        self._baton.release()
        parked.go.acquire()

    def _run(self, until: float, stop: Callable[[], bool]) -> None:
        assert threading.get_ident() == self._driver
        while not stop():
            runnable = self._next()
            if runnable is None or self._due(runnable) > until:
                self._now = max(self._now, until)
                return
            self._now = max(self._now, self._due(runnable))
            self._parked.remove(runnable)
            runnable.go.release()
            self._baton.acquire()
            if self._errors:
                raise self._errors.pop(0)

    def _due(self, parked: _Parked) -> float:
        return self._now if parked.event is not None and parked.event.is_set() else parked.due

    def _next(self) -> _Parked | None:
        return min(self._parked, key=self._due, default=None)

"""A clock in virtual seconds, and helpers that live by it: a call that hangs ends when the clock says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from gpusched.devices.helper import answer
from gpusched.devices.nvml import Gpu
from gpusched.devices.release import Processes


class Blocks(BaseException):
    """A call of the driver that returns at ``until`` and not before."""

    def __init__(self, until: float) -> None:
        self.until = until


class VirtualClock:
    """The time of a test, and ``World`` for the devices: nothing moves but by ``advance``."""

    def __init__(self) -> None:
        self._now = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.helpers: list[VirtualHelper] = []
        #: Time that a GPU takes to wake up for a helper that has not opened it.
        self.wakes_s = 0.0

    def now(self) -> float:
        return self._now

    def block(self, until: float) -> None:
        """For the fake driver: a call that takes so long."""
        if until > self._now:
            raise Blocks(until)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (self._now + delay_s, next(self._count), action))

    def advance(self, seconds: float) -> None:
        self.go_to(self._now + seconds)

    def go_to(self, until: float) -> None:
        while self._actions and self._actions[0][0] <= until:
            due, _, action = heapq.heappop(self._actions)
            self._now = max(self._now, due)
            action()
        self._now = max(self._now, until)

    def skip(self, seconds: float) -> None:
        """Let time pass while all stand still."""
        self._now += seconds

    # ------------------------------------------------------------ the world of the helpers

    def start(self, processes: Processes) -> VirtualHelper:
        self.helpers.append(VirtualHelper(self, processes))
        return self.helpers[-1]

    def wait(self, helper: VirtualHelper | None, timeout_s: float) -> None:
        until = self._now + max(0.0, timeout_s)
        while self._now < until and not (helper and helper.has_answer):
            self.advance(min(0.05, until - self._now))


class VirtualHelper:
    """A helper that asks the fake driver one question after another; a call that hangs ends when the clock says so."""

    def __init__(self, clock: VirtualClock, processes: Processes) -> None:
        self._clock, self._processes = clock, processes
        self._question: tuple[Gpu | None, float] | None = None
        self._answer: Any = None
        self._until = 0.0
        self.killed = False
        #: The GPUs that it has opened.
        self.opened: set[str] = set()

    def ask(self, gpu: Gpu | None, at: float) -> None:
        assert not self._question, "one question at a time"
        self._question = (gpu, at)
        if gpu and gpu.uuid not in self.opened:
            self.opened.add(gpu.uuid)
            self._until = self._clock.now() + self._clock.wakes_s
        self._work()

    def _work(self) -> None:
        if self._question is None or self.killed or self._clock.now() < self._until:
            return
        try:
            self._answer = answer(self._processes, *self._question)
            self._question = None
        except Blocks as blocks:
            self._until = blocks.until

    @property
    def has_answer(self) -> bool:
        self._work()
        return self._answer is not None

    def take(self) -> Any:
        if self.killed:
            raise EOFError
        taken, self._answer = (self._answer, None) if self.has_answer else (None, None)
        return taken

    def kill(self) -> None:
        self.killed = True

    def is_gone(self) -> bool:
        """A call that hangs outlives SIGKILL."""
        return self._clock.now() >= self._until

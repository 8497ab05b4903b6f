"""A clock in virtual seconds, and helpers that live by it: a call that hangs ends when the clock says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from gpusched.devices.helper import Board, GpuHelper, HelperAnswer
from gpusched.devices.holders import Processes


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

    def now(self) -> float:
        return self._now

    def block(self, until: float) -> None:
        """For the fake driver: a call that takes so long."""
        if until > self._now:
            raise Blocks(until)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (self._now + delay_s, next(self._count), action))

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while self._actions and self._actions[0][0] <= until:
            due, _, action = heapq.heappop(self._actions)
            self._now = max(self._now, due)
            action()
        self._now = max(self._now, until)

    def skip(self, seconds: float) -> None:
        """Let time pass while all stand still."""
        self._now += seconds

    # ------------------------------------------------------------ the world of the helpers

    def start(self, processes: Processes) -> GpuHelper:
        self.helpers.append(VirtualHelper(self, processes))
        return self.helpers[-1]

    def wait(self, helpers: Sequence[GpuHelper], timeout_s: float) -> None:
        until = self._now + max(0.0, timeout_s)
        while self._now < until and not any(h.has_answer for h in helpers):
            self.advance(min(0.05, until - self._now))


class VirtualHelper:
    """A helper that asks the fake driver at the moment of the question, or when the call that hangs has ended."""

    def __init__(self, clock: VirtualClock, processes: Processes) -> None:
        self._board, self._clock = Board(processes), clock
        self._question: Any = None
        self._asked_at = self._until = 0.0
        self._answer: HelperAnswer | None = None
        self.killed = False

    def ask(self, question: Any) -> None:
        assert self._question is None, "one question at a time"
        self._question, self._asked_at = question, self._clock.now()
        self._try()

    def _try(self) -> None:
        try:
            value: Any = self._board.answer(self._question)
        except Blocks as blocks:
            self._until = blocks.until
            return
        self._answer = HelperAnswer(value, self._clock.now() - self._asked_at)

    @property
    def has_answer(self) -> bool:
        if self._question is not None and self._answer is None and self._clock.now() >= self._until:
            self._try()
        return self._answer is not None

    def take(self) -> HelperAnswer | None:
        if self.killed:
            raise EOFError
        if not self.has_answer:
            return None
        answer, self._answer, self._question = self._answer, None, None
        return answer

    def kill(self) -> None:
        self.killed = True

    def is_gone(self) -> bool:
        """A call that hangs outlives SIGKILL."""
        return self._clock.now() >= self._until

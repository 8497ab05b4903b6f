"""Configurations to start: those that a person asked for, then the sampler's sequence without barred ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

Hparams = Mapping[str, object]
#: The n-th configuration of the sequence; None after the last.
Draw = Callable[[int], Hparams | None]
#: A sampler that draws from a few values may draw barred ones for ever: after so many in a row it has no more.
_PASSED_OVER_MAX = 1000


class Configurations:
    """The configurations of one search that have not started; ``most``: trials that may start from the sequence.

    ``draw``: the sequence; None: a sampler with a memory is asked for one configuration after the other.
    """

    def __init__(self, draw: Draw | None) -> None:
        self._draw = draw
        self.learns = draw is None
        #: Trials that have started from the sequence.
        self.started = 0
        #: Configurations that a person asked for, each with the seed of its training.
        self.given: deque[tuple[Hparams, int | None]] = deque()
        #: The answers of a sampler with a memory by their number, and the number it has been asked for.
        self.suggested: dict[int, Hparams | None] = {}
        self.asked_for: int | None = None
        self._next: Hparams | None = None
        #: Places in the sequence: of the latest trial, and of the latest configuration drawn.
        self._used = self._drawn = 0
        #: Configurations that are not tried again.
        self._barred: list[Hparams] = []

    def has_next(self, most: float) -> bool:
        """Tell whether there is another configuration to start."""
        return bool(self.given) or self._has_own(most)

    def _has_own(self, most: float) -> bool:
        if most <= 0:
            return False
        if self._next is None:
            self._next = self._next_that_may_work()
        return self._next is not None

    def may_have_next(self, most: float) -> bool:
        """Tell whether there is another configuration, or a sampler with a memory may suggest one."""
        is_open = self.learns and most > 0 and None not in self.suggested.values()
        return is_open or self.has_next(most)

    def left(self, most: float) -> float:
        """Return the number of those that can still be started, as far as is known."""
        return len(self.given) + (most if self._has_own(most) else 0)

    def to_suggest(self, most: float) -> int | None:
        """Return the number to ask a sampler with a memory for now, one ahead of the trials; None: none yet."""
        if self._draw is not None or self.asked_for is not None or self._next is not None:
            return None
        return None if most <= 0 or self._drawn in self.suggested else self._drawn

    def take(self) -> tuple[Hparams, int | None]:
        """Take the next, with the seed that a person gave. The caller has asked ``has_next``."""
        if self.given:
            return self.given.popleft()
        assert self._next is not None
        hparams, self._next, self._used = self._next, None, self._drawn
        self.started += 1
        return hparams, None

    def bar(self, hparams: Hparams) -> None:
        """Bar a configuration from being tried again."""
        if hparams not in self._barred:
            self._barred.append(hparams)
        if self._next == hparams:
            self._next = None

    def _next_that_may_work(self) -> Hparams | None:
        """Return the next that is not barred; None at the end, or where only barred ones seem to be left."""
        draw = self.suggested.get if self._draw is None else self._draw
        while self._drawn - self._used < _PASSED_OVER_MAX:
            hparams = draw(self._drawn)
            if hparams is None:
                return None
            self._drawn += 1
            if hparams not in self._barred:
                return hparams
        return None

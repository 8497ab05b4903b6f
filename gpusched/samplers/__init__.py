"""Samplers suggest configurations: ``sequence`` alone, or with a ``memory`` of earlier trials, as ``optuna``'s."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.space.space import Space

#: Short names of Optuna's samplers: the class, and arguments that a recipe may replace. Others go by their class.
OPTUNA: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tpe": ("TPESampler", {"multivariate": True, "group": True, "constant_liar": True}),
    "gp": ("GPSampler", {}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A trial so far. More ``score`` is better whatever the recipe's ``mode``."""

    trial: int
    hparams: Mapping[str, Any]
    #: pending, starting, running, yielding, paused, completed, stopped or failed: that also where its latest metric was
    #: not finite.
    state: str
    #: (step, score) of the reports; a long curve is thinned.
    curve: Sequence[tuple[int, float]]

    @property
    def score(self) -> float | None:
        """The best score; None without a report."""
        return max((score for _, score in self.curve), default=None)


class Sampler(ABC):
    """Suggests configurations by what is known: derive from it, and write ``suggest``.

    ``startup``: so many configurations are drawn at random before the first question.
    """

    startup = 0

    def __init__(self, space: Space) -> None:
        self.space = space

    @abstractmethod
    def suggest(
        self, n: int, seen: Sequence[Seen], random: random.Random
    ) -> Mapping[str, object] | None:
        """Return configuration ``n``, or a part of it: the rest is drawn. None ends the sequence.

        ``random`` is seeded by the recipe's seed and ``n``: the same question gets the same answer.
        """

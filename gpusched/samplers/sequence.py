"""Samplers that are functions of (seed, n), so that every policy sees the same configurations.

A recipe's ``try_first`` comes before all others and moves none of them: what is drawn after it is what would have been
drawn without it.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from gpusched.space.forms import Const, Range, identity
from gpusched.space.reader import MAX_GRID
from gpusched.space.space import Space, flat

NAMES = ("random", "grid", "independent")

#: After so many draws in a row that gave nothing new, the rest of a space that can be listed is taken in an order of
#: its own. A space that cannot be listed is given up after many more.
_MISSES, _MISSES_MAX = 100, 100_000

Configuration = dict[str, object]


class Sampler(ABC):
    """A sequence of configurations."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of configurations; None if it is not known."""

    @abstractmethod
    def sample(self, n: int) -> Configuration | None:
        """Return the n-th configuration, counting from 0, for the caller to keep; None behind the last."""


class Independent(Sampler):
    """Draws each configuration from (seed, n) alone, so that a small space repeats itself.

    Keys that are a ``grid`` are enumerated, the others are drawn beside them. This is what experiments of versions
    without the key ``sampler`` resume with: its sequence must never change.
    """

    def __init__(self, space: Space, seed: int, first: Sequence[Mapping[str, object]] = ()) -> None:
        self._space = space
        self._seed = seed
        self._first = [flat(values, space.leaves) for values in first]

    @property
    def size(self) -> int | None:
        if self._space.grid is not None:
            return len(self._first) + len(self._space.grid)
        is_fixed = all(isinstance(leaf.form, Const) for leaf in self._space.leaves.values())
        return len(self._first) + 1 if is_fixed else None

    def sample(self, n: int) -> Configuration | None:
        if self.size is not None and n >= self.size:
            return None
        if n < len(self._first):
            return self._space.draw(self._seed, f"first {n}", self._first[n])
        n -= len(self._first)
        grid = self._space.grid
        return self._space.draw(self._seed, str(n), {} if grid is None else grid[n])


class Random(Sampler):
    """Draws like ``Independent``, but passes over configurations that came before; the likely ones tend to come early.

    A space whose configurations can be listed ends when all of them have come.
    """

    def __init__(self, space: Space, seed: int, first: Sequence[Mapping[str, object]] = ()) -> None:
        self._space = space
        self._seed = seed
        self._draws = Independent(space, seed, first)
        self._first_count = len(first)
        #: A range that every configuration draws from repeats none, so nothing need be remembered.
        self._never_repeats = space.grid is None and any(
            isinstance(leaf.form, Range) and not leaf.conditions for leaf in space.leaves.values()
        )
        self._drawn = 0
        self._found: list[Configuration] = []
        self._seen: set[str] = set()
        self._has_ended = False

    @property
    def size(self) -> int | None:
        if self._draws.size is not None:
            self._find(self._draws.size)
            return len(self._found)
        everything = self._space.configurations
        if everything is None:
            return None
        first = map(self._draws.sample, range(self._first_count))
        return len({identity(values) for values in (*first, *everything)})

    def sample(self, n: int) -> Configuration | None:
        if self._never_repeats:
            return self._draws.sample(n)
        self._find(n + 1)
        return copy.deepcopy(self._found[n]) if n < len(self._found) else None

    def _find(self, count: int) -> None:
        """Draw until there are ``count`` configurations, or no more."""
        misses = 0
        while len(self._found) < count and not self._has_ended:
            drawn = self._draws.sample(self._drawn)
            self._drawn += 1
            if drawn is None:
                self._has_ended = True
            elif self._add(drawn):
                misses = 0
            else:
                misses += 1
                self._end_after(misses)

    def _add(self, values: Configuration) -> bool:
        known = identity(values)
        if known in self._seen:
            return False
        self._seen.add(known)
        self._found.append(values)
        return True

    def _end_after(self, misses: int) -> None:
        """After many misses in a row, add the rest of a space that can be listed; after very many, end."""
        if misses == _MISSES and self._space.configurations is not None:
            order = {_digest(self._seed, values): values for values in self._space.configurations}
            for _, values in sorted(order.items()):
                self._add(values)
            self._has_ended = True
        elif misses == _MISSES_MAX:
            self._has_ended = True


class Listed(Sampler):
    """Lists every configuration of a finite space, in order of the keys' names, the last one fastest."""

    def __init__(self, space: Space, seed: int, first: Sequence[Mapping[str, object]] = ()) -> None:
        draws = Independent(space, seed, first)
        before = [values for n in range(len(first)) if (values := draws.sample(n)) is not None]
        listed = [*before, *(space.configurations or ())]
        self._found = list({identity(values): values for values in listed}.values())

    @property
    def size(self) -> int:
        return len(self._found)

    def sample(self, n: int) -> Configuration | None:
        return copy.deepcopy(self._found[n]) if n < len(self._found) else None


class Repeated(Sampler):
    """All configurations of a finite sampler, ``times`` over. Every trial has a seed of its own."""

    def __init__(self, sampler: Sampler, times: int) -> None:
        self._sampler = sampler
        self._once = sampler.size or 0
        self._times = times

    @property
    def size(self) -> int:
        return self._once * self._times

    def sample(self, n: int) -> Configuration | None:
        return self._sampler.sample(n % self._once) if n < self.size else None


def make(
    name: str, space: Space, seed: int, first: Sequence[Mapping[str, object]] = (), repeats: int = 1
) -> Sampler:
    """Make the sampler of this name, for a space of which ``problems`` yields nothing."""
    sampler: Sampler = _SAMPLERS[name](space, seed, first)
    return Repeated(sampler, repeats) if repeats > 1 else sampler


def problems(name: str, space: Space, repeats: int) -> Iterator[tuple[str, str]]:
    """Yield keys of a recipe that do not go with its space, each with the reason and what to do."""
    if name == "grid" and space.configurations is None:
        yield "sampler", f"grid lists all configurations, but {_endless(space)}"
    if repeats > 1 and make(name, space, 0).size is None:
        yield "repeats", f"needs a number of configurations, but {_endless(space)}"


def _endless(space: Space) -> str:
    if space.configurations is not None:
        return "independent never ends; use sampler: random"
    for path, leaf in space.leaves.items():
        if leaf.form is not None and leaf.form.options(MAX_GRID) is None:
            return f"{'.'.join(path)} is drawn from {leaf.form}; use choice, int or a step q"
    return f"the space has more than {MAX_GRID} of them"


_SAMPLERS: dict[str, type[Independent | Random | Listed]] = {
    "random": Random,
    "grid": Listed,
    "independent": Independent,
}


def _digest(seed: int, values: Configuration) -> str:
    return hashlib.sha256(f"{seed}/rest/{identity(values)}".encode()).hexdigest()

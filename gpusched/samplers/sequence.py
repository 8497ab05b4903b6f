"""Random and grid search, functions of (seed, n), so that every policy sees the same configurations.

A recipe's ``try_first`` comes before all others and moves none of them: what is drawn after it is what would have been
drawn without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from gpusched.space.forms import identity
from gpusched.space.reader import MAX_GRID
from gpusched.space.space import Space, flat

NAMES = ("random", "grid")

#: After so many draws in a row that gave nothing new, the rest of a space that can be listed is taken in an order of
#: its own. A space that cannot be listed is given up after many more.
_MISSES, _MISSES_MAX = 100, 100_000

Configuration = dict[str, object]


class InTurn:
    """The configurations of a search in order: what a recipe's ``try_first`` names, then what is found in the space.

    ``random`` draws from (seed, n) and passes over what came before; the likely ones come early. ``grid`` lists all in
    the order of the keys' names, the last one fastest. ``tried``: configurations of an earlier search, which are passed
    over.
    """

    def __init__(
        self,
        name: str,
        space: Space,
        seed: int,
        first: Sequence[Mapping[str, object]] = (),
        tried: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """``name``: of the sampler; ``problems`` yields nothing for it and the space."""
        self._is_random = name == "random"
        self._space = space
        self._seed = seed
        given = [flat(values, space.leaves) for values in first]
        self._found = [space.draw(seed, f"first {n}", values) for n, values in enumerate(given)]
        self._seen = {*map(identity, self._found), *map(identity, tried)}
        self._drawn = 0
        self._has_ended = False

    @property
    def size(self) -> int | None:
        """Number of configurations; None if it is not known."""
        everything = self._space.configurations
        if everything is None:
            return None
        return len(self._found) + len({*map(identity, everything)} - self._seen)

    def sample(self, n: int) -> Configuration | None:
        """Return the n-th configuration, counting from 0; None behind the last."""
        misses = 0 if self._is_random else _MISSES
        while len(self._found) <= n and not self._has_ended:
            if misses == _MISSES and (known := self._space.configurations) is not None:
                for values in sorted(known, key=self._place) if self._is_random else known:
                    self._add(values)
                self._has_ended = True
            elif misses == _MISSES_MAX:
                self._has_ended = True
            else:
                drawn = self._space.draw(self._seed, str(self._drawn), {})
                self._drawn += 1
                misses = 0 if self._add(drawn) else misses + 1
        return self._found[n] if n < len(self._found) else None

    def _place(self, values: Configuration) -> str:
        return hashlib.sha256(f"{self._seed}/rest/{identity(values)}".encode()).hexdigest()

    def _add(self, values: Configuration) -> bool:
        """Add a configuration unless it came before."""
        known = identity(values)
        if known in self._seen:
            return False
        self._seen.add(known)
        self._found.append(values)
        return True


def problems(name: str, space: Space) -> Iterator[tuple[str, str]]:
    """Yield keys of a recipe that do not go with its space, each with the reason and what to do."""
    if name == "grid" and space.configurations is None:
        yield "sampler", f"grid lists all configurations, but {_endless(space)}"


def _endless(space: Space) -> str:
    for path, leaf in space.leaves.items():
        if leaf.form is not None and leaf.form.options(MAX_GRID) is None:
            return f"{'.'.join(path)} is drawn from {leaf.form}; use choice, int or a step q"
    return f"the space has more than {MAX_GRID} of them"

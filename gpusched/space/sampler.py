"""The search space of a recipe, and what draws configurations from it.

The n-th configuration depends on the seed and n alone: not on the order of the keys, not on how many were drawn
before, not on the platform. So every policy sees the same sequence. Each key is drawn from a hash of
``seed/n/dotted.key``; the keys that are a grid are enumerated in order (sorted by name, the last one fastest), the
others are drawn beside it.

A recipe's ``try_first`` comes before all of it, and moves nothing: what is drawn after it is what would have been drawn
without it.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from gpusched.errors import InputError
from gpusched.space import forms
from gpusched.space.forms import Const, Grid, same
from gpusched.space.reader import Leaf, Path, Problem, Reader
from gpusched.text import show

__all__ = ["Problem", "Sampler", "Space", "SpaceError", "parse_space"]


class Sampler(Protocol):
    """Where configurations come from."""

    def sample(self, n: int) -> dict[str, object] | None:
        """The n-th configuration, counting from 0; None if there is none left (a grid's end)."""
        ...


class SpaceError(InputError):
    """All problems of a space."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, problems)))


class Space:
    """A parsed search space; itself the sampler. Made by ``parse_space``."""

    def __init__(
        self,
        leaves: Mapping[Path, Leaf],
        order: list[Path],
        seed: int,
        first: Sequence[Mapping[Path, object]] = (),
    ) -> None:
        self.seed = seed
        self._leaves = leaves
        self._order = order
        self._first = first
        self._grid = sorted(path for path in order if isinstance(leaves[path].form, Grid))

    @functools.cached_property
    def size(self) -> int | None:
        """How many configurations there are; None if they never end.

        A space is finite if it has a grid or nothing random at all.
        """
        size = self._size_of_the_rest
        return None if size is None else len(self._first) + size

    @functools.cached_property
    def _size_of_the_rest(self) -> int | None:
        if not self._grid:
            fixed = all(isinstance(leaf.form, Const) for leaf in self._leaves.values())
            return 1 if fixed else None
        return math.prod(self._radices) if self._cells is None else len(self._cells)

    def sample(self, n: int) -> dict[str, object] | None:
        """The n-th configuration as nested maps; None after a grid's last."""
        if n < 0:
            raise ValueError(f"configurations count from 0, not {n}")
        if n < len(self._first):
            return self._complete(f"first {n}", self._first[n])
        n -= len(self._first)
        if self._size_of_the_rest is not None and n >= self._size_of_the_rest:
            return None
        cell = self._cell(n) if self._grid else {}
        given = {path: self._options(path)[place] for path, place in cell.items()}
        return self._complete(str(n), given)

    def _complete(self, name: str, given: Mapping[Path, object]) -> dict[str, object]:
        """The configuration of this name: what is ``given``, and everything else drawn."""
        values: dict[Path, object] = {}
        for path in self._order:
            leaf = self._leaves[path]
            if self._holds(leaf, values):
                assert leaf.form is not None
                form = Const(given[path]) if path in given else leaf.form
                values[path] = form.draw(_bits(self.seed, name, path))
        return _nested({path: values[path] for path in self._leaves if path in values})

    def _options(self, path: Path) -> tuple[object, ...]:
        form = self._leaves[path].form
        assert isinstance(form, Grid)
        return form.options

    def describe(self) -> Iterator[tuple[str, str]]:
        """Each hyperparameter's dotted name and, in words, what it may be."""
        for path, leaf in self._leaves.items():
            text = str(leaf.form)
            for reference, allowed in leaf.conditions:
                text += f", if {'.'.join(reference)} is {' or '.join(map(show, allowed))}"
            yield ".".join(path), text

    # ------------------------------------------------------------ the grid

    @functools.cached_property
    def _radices(self) -> list[int]:
        grids = [self._leaves[path].form for path in self._grid]
        return [len(form.options) for form in grids if isinstance(form, Grid)]

    @functools.cached_property
    def _cells(self) -> list[int] | None:
        """Which cells of the full product count: those that differ in more than keys that are absent."""
        if not any(self._leaves[path].conditions for path in self._grid):
            return None
        return [cell for cell in range(math.prod(self._radices)) if self._is_canonical(cell)]

    def _cell(self, n: int) -> dict[Path, int]:
        return self._decode(n if self._cells is None else self._cells[n])

    def _decode(self, cell: int) -> dict[Path, int]:
        places = {}
        for path, radix in zip(reversed(self._grid), reversed(self._radices), strict=True):
            cell, places[path] = divmod(cell, radix)
        return places

    def _is_canonical(self, cell: int) -> bool:
        places = self._decode(cell)
        values: dict[Path, object] = {}
        for path in self._order:
            form = self._leaves[path].form
            if self._holds(self._leaves[path], values):
                if isinstance(form, Grid):
                    values[path] = form.options[places[path]]
                elif isinstance(form, Const):
                    values[path] = form.value
            elif places.get(path):
                return False
        return True

    @staticmethod
    def _holds(leaf: Leaf, values: Mapping[Path, object]) -> bool:
        return all(
            path in values and any(same(values[path], value) for value in allowed)
            for path, allowed in leaf.conditions
        )


def _bits(seed: int, name: str, path: Path) -> int:
    text = f"{seed}/{name}/{'.'.join(path)}"
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[: forms.BITS // 8], "big")


def _nested(values: Mapping[Path, object]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for path, value in values.items():
        branch = tree
        for name in path[:-1]:
            inner = branch.setdefault(name, {})
            assert isinstance(inner, dict)
            branch = inner
        branch[path[-1]] = value
    return tree


def parse_space(raw: object, seed: int = 0, first: Sequence[Mapping[str, object]] = ()) -> Space:
    """Read a search space from plain maps and lists; raises SpaceError with all its problems.

    ``first``: configurations that come before the drawn ones, as checked by ``space_first``; what one leaves out is
    drawn.
    """
    reader = Reader()
    reader.read(raw)
    order = reader.resolve()
    if reader.problems:
        raise SpaceError(reader.problems)
    return Space(reader.leaves, order, seed, [flat(values, reader.leaves) for values in first])


def flat(values: Mapping[str, object], leaves: Mapping[Path, Leaf]) -> dict[Path, object]:
    """Nested values by their paths; a map that a key of the space has as its value is not taken apart."""
    found: dict[Path, object] = {}

    def walk(path: Path, value: object) -> None:
        if path in leaves or not isinstance(value, Mapping):
            found[path] = value
            return
        for name, inner in value.items():
            walk((*path, str(name)), inner)

    for name, value in values.items():
        walk((str(name),), value)
    return found

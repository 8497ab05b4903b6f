"""A parsed search space: hyperparameters with their forms and conditions, and how one configuration is drawn.

A draw depends on the seed and the configuration's name alone: not on the order of the keys, not on what was drawn
before, not on the platform. Each key is drawn from a hash of ``seed/name/dotted.key``.

In the recipe's ``args`` ``${net.width}`` stands for the trial's value, ``${hparams}`` as an argument of its own for
all, ``--lr=0.1 --net.skip=True``, and ``$${`` for ``${`` itself. An argument with a hyperparameter that this
configuration has not (its ``when`` does not hold) is left out.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from gpusched import text
from gpusched.errors import InputError
from gpusched.space import forms
from gpusched.space.forms import Choice, Form, Range, Steps, same
from gpusched.space.reader import MAX_GRID, Finding, Leaf, Path, Reader
from gpusched.text import nearest, show

Values = dict[Path, object]

#: Names that stand for all hyperparameters, and for the trial's number and folder, in an argument of the script.
ALL, ID, FOLDER = "hparams", "trial.id", "trial.folder"
_PLACE = re.compile(r"\$(\$\{|\{([^{}]*)\})")


class SpaceError(InputError):
    """All problems of a space."""

    def __init__(self, problems: list[Finding]) -> None:
        self.problems = tuple(problems)
        told = (f"{'.'.join(path) or 'space'}: {message}" for path, message in problems)
        super().__init__("\n".join(told))


class Space:
    """A search space without problems. Made by ``parse_space``."""

    def __init__(self, leaves: Mapping[Path, Leaf], order: list[Path]) -> None:
        self.leaves = leaves
        self._order = order

    def draw(self, seed: int, name: str, given: Mapping[Path, object]) -> dict[str, object]:
        """Return the configuration of this name as nested maps: values that are ``given``, all others drawn."""

        def choose(path: Path, form: Form) -> object:
            form = Choice((_own(form, given[path]),)) if path in given else form
            return form.draw(_bits(seed, name, path))

        return self.fill(choose)

    def fill(self, choose: Callable[[Path, Form], object]) -> dict[str, object]:
        """Return a configuration as nested maps: ``choose`` gives the value of each key whose condition holds."""
        values: Values = {}
        for path in self._order:
            leaf = self.leaves[path]
            if _holds(leaf, values):
                assert leaf.form is not None
                values[path] = choose(path, leaf.form)
        return self.nested(values)

    @functools.cached_property
    def configurations(self) -> list[dict[str, object]] | None:
        """Every configuration, ordered by the keys' names, the last one fastest; None if more than ``MAX_GRID``."""
        found: list[tuple[dict[Path, int], Values]] = [({}, {})]
        for path in self._order:
            leaf = self.leaves[path]
            options = None if leaf.form is None else leaf.form.options(MAX_GRID)
            if options is None:
                return None
            more = []
            for places, values in found:
                if _holds(leaf, values):
                    for place, option in enumerate(options):
                        more.append(({**places, path: place}, {**values, path: option}))
                else:
                    more.append((places, values))
            if len(more) > MAX_GRID:
                return None
            found = more
        names = sorted(self.leaves)
        found.sort(key=lambda pair: [pair[0].get(path, 0) for path in names])
        return [self.nested(values) for _, values in found]

    def nested(self, values: Mapping[Path, object]) -> dict[str, object]:
        """Return values as nested maps, in the order of the recipe."""
        tree: dict[str, object] = {}
        for path in self.leaves:
            if path not in values:
                continue
            branch = tree
            for name in path[:-1]:
                inner = branch.setdefault(name, {})
                assert isinstance(inner, dict)
                branch = inner
            branch[path[-1]] = values[path]
        return tree

    def describe(self) -> Iterator[tuple[str, str]]:
        """Yield each hyperparameter's dotted name and, in words, its values."""
        for path, leaf in self.leaves.items():
            yield ".".join(path), ", if ".join((str(leaf.form), *_conditions(leaf)))


def _conditions(leaf: Leaf) -> Iterator[str]:
    for reference, allowed in leaf.conditions:
        yield f"{'.'.join(reference)} is {' or '.join(map(show, allowed))}"


def _holds(leaf: Leaf, values: Mapping[Path, object]) -> bool:
    return all(
        path in values and any(same(values[path], value) for value in allowed)
        for path, allowed in leaf.conditions
    )


def _own(form: Form, value: Any) -> object:
    """Return a given value as the form draws it: 64 for 64.0, which a script takes for no size."""
    known: tuple[object, ...] = form.values if isinstance(form, Choice) else ()
    if isinstance(form, Steps) and form.whole:
        known = (int(value),)
    return next((own for own in known if same(own, value)), value)


def _bits(seed: int, name: str, path: Path) -> int:
    digest = hashlib.sha256(f"{seed}/{name}/{'.'.join(path)}".encode()).digest()
    return int.from_bytes(digest[: forms.BITS // 8], "big")


def parse_space(raw: object) -> Space:
    """Read a search space from plain maps and lists. Raises SpaceError with all its problems."""
    reader = Reader()
    reader.read(raw)
    order = reader.resolve()
    if reader.problems:
        raise SpaceError(reader.problems)
    return Space(reader.leaves, order)


def flat(values: Mapping[str, object], leaves: Mapping[Path, Leaf]) -> Values:
    """Return values, nested or by dotted name, by their paths; a map that is the value of one key stays whole."""
    found: Values = {}

    def walk(path: Path, value: object) -> None:
        if path in leaves or not isinstance(value, Mapping):
            found[path] = value
            return
        for name, inner in value.items():
            walk((*path, *str(name).split(".")), inner)

    walk((), values)
    return found


def misfit(space: Space, values: Mapping[str, object]) -> str:
    """Say why these nested values are no configuration of the space with all of its keys; empty where they are."""
    drawn, found = completed(space, 0, "whole", values)
    missing = flat(drawn, space.leaves).keys() - flat(values, space.leaves).keys()
    found += [(path, "is missing") for path in sorted(missing)]
    return f"{'.'.join(found[0][0])} {found[0][1]}" if found else ""


def completed(
    space: Space, seed: int, name: str, values: Mapping[str, object], may_be_outside: bool = False
) -> tuple[dict[str, object], list[Finding]]:
    """Return a configuration with these values and the rest drawn, and the problems of the values.

    ``may_be_outside``: values outside the bounds are taken.
    """
    found = list(value_problems(values, space.leaves, may_be_outside))
    if found:
        return {}, found
    given = flat(values, space.leaves)
    drawn = space.draw(seed, name, given)
    there, why = flat(drawn, space.leaves), "is absent with these values: it is there if"
    absent = [path for path in given if path not in there]
    return drawn, [(p, f"{why} {' and '.join(_conditions(space.leaves[p]))}") for p in absent]


def value_problems(
    values: Mapping[str, object], leaves: Mapping[Path, Leaf], may_be_outside: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with values of a space, each by itself: unknown, of another type or outside."""
    if not values:
        yield (), "is empty; give at least one key of the space, as in {lr: 0.1}"
    for path, value in flat(values, leaves).items():
        if (leaf := leaves.get(path)) is None:
            known, name = [".".join(known) for known in leaves], ".".join(path)
            inside = next((other for other in known if other.startswith(f"{name}.")), None)
            meant = inside or nearest(name, known)
            hint = f"; did you mean {meant}?" if meant else f"; there are {', '.join(known[:20])}"
            yield path, f"is not a key of the space{hint}"
        elif isinstance(leaf.form, Range | Steps) and (
            isinstance(value, bool) or not isinstance(value, int | float)
        ):
            yield path, f"{show(value)} is not a number; the space has {leaf.form}"
        elif leaf.form is not None and not may_be_outside and not _lies_in(leaf.form, value):
            yield path, f"{show(value)} is outside the space ({leaf.form})"


def _lies_in(form: Form, value: Any) -> bool:
    """Tell whether the value could be drawn; of a range it is a number, and any within quantised bounds will do."""
    if not isinstance(form, Range | Steps):
        return form.may_be(value) is True
    number: float = value
    if isinstance(form, Range):
        return form.low <= number <= form.high
    exact = Decimal(repr(number))
    fits = form.first * form.step <= exact <= form.last * form.step
    return fits and (not form.whole or exact == exact.to_integral_value())


# ---------------------------------------------------------------- the script's command line


def names_in(argument: str) -> list[str]:
    """Return the names in an argument of the script, ``hparams`` included."""
    return [found[2].strip() for found in _PLACE.finditer(argument) if found[2] is not None]


def command_line(
    arguments: Sequence[str], hparams: Mapping[str, object], trial: int, folder: str
) -> list[str]:
    """Return the arguments of the trial of this number, folder and hyperparameters."""
    values = {ID: str(trial), FOLDER: folder, **dict(_texts(hparams, ""))}
    filled: list[str] = []
    for argument in arguments:
        named = names_in(argument)
        if named == [ALL] and _PLACE.fullmatch(argument.strip()):
            filled += [f"--{name}={values[name]}" for name, _ in text.flat(hparams)]
        elif all(name in values for name in named):
            filled.append(
                _PLACE.sub(
                    lambda found: "${" if found[2] is None else values[found[2].strip()], argument
                )
            )
    return filled


def _texts(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield each value by its dotted name, a map and what is in it, as scripts read it.

    That is text as it is, ``True`` as Python has it (for fire and ``literal_eval``), else JSON (``null``, ``[1, 2]``).
    """
    for name, value in values.items():
        yield f"{prefix}{name}", str(value) if isinstance(value, str | bool) else json.dumps(value)
        if isinstance(value, Mapping):
            yield from _texts(value, f"{prefix}{name}.")

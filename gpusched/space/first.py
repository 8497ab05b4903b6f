"""A recipe's ``try_first``: configurations that a person wants tried before any is drawn. Checked against the space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from gpusched.space.forms import Form, LogUniform, Steps, Uniform
from gpusched.space.reader import Leaf, Path, Reader
from gpusched.space.sampler import flat, parse_space
from gpusched.text import nearest, show

Finding = tuple[tuple[str | int, ...], str]
"""Where in ``try_first``, and what is wrong there."""


def check(raw_space: object, seed: int, first: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    """What is wrong with ``first`` in a space that is right in itself."""
    reader = Reader()
    reader.read(raw_space)
    good = []
    for place, values in enumerate(first):
        found = list(_problems(values, reader.leaves))
        for path, message in found:
            yield (place, *path), message
        if not found:
            good.append((place, values))
    space = parse_space(raw_space, seed, [values for _, values in good])
    for n, (place, values) in enumerate(good):
        there = flat(space.sample(n) or {}, reader.leaves)
        for path in flat(values, reader.leaves):
            if path not in there:
                yield (place, *path), "is not there with these values: its 'when' does not hold"


def _problems(
    values: Mapping[str, object], leaves: Mapping[Path, Leaf]
) -> Iterator[tuple[Path, str]]:
    if not values:
        yield (), "is empty; give at least one key of the space, as in {lr: 0.1}"
    for path, value in flat(values, leaves).items():
        leaf = leaves.get(path)
        if leaf is None:
            known, name = [".".join(known) for known in leaves], ".".join(path)
            inside = next((other for other in known if other.startswith(f"{name}.")), None)
            meant = inside or nearest(name, known)
            hint = f"; did you mean {meant}?" if meant else f"; there are {', '.join(known[:20])}"
            yield path, f"is no key of the space{hint}"
        elif leaf.form is not None and not _lies_in(leaf.form, value):
            yield path, f"{show(value)} is outside the space ({leaf.form})"


def _lies_in(form: Form, value: object) -> bool:
    """Whether it could have been drawn; of a quantised range any number within the bounds will do."""
    if isinstance(form, Uniform | LogUniform | Steps):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not isinstance(form, Steps):
            return form.low <= value <= form.high
        exact = Decimal(repr(value))
        fits = form.first * form.step <= exact <= form.last * form.step
        return fits and (not form.whole or exact == exact.to_integral_value())
    return form.may_be(value) is True

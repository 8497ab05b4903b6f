"""A recipe's ``try_first``, configurations to begin with, checked against the space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from gpusched.space.forms import Form, LogUniform, Steps, Uniform
from gpusched.space.reader import Leaf, Path
from gpusched.space.space import Space, flat
from gpusched.text import nearest, show

Finding = tuple[tuple[str | int, ...], str]
"""A place in ``try_first``, and its problem."""


def check(space: Space, seed: int, first: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    """Yield the problems of ``first``."""
    for place, values in enumerate(first):
        found = list(_problems(values, space.leaves))
        for path, message in found:
            yield (place, *path), message
        if found:
            continue
        given = flat(values, space.leaves)
        drawn = flat(space.draw(seed, f"first {place}", given), space.leaves)
        for path in given:
            if path not in drawn:
                yield (place, *path), "is absent with these values: its 'when' does not hold"


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
            yield path, f"is not a key of the space{hint}"
        elif leaf.form is not None and not _lies_in(leaf.form, value):
            yield path, f"{show(value)} is outside the space ({leaf.form})"


def _lies_in(form: Form, value: object) -> bool:
    """Tell whether the value could be drawn; of a quantised range any number within the bounds will do."""
    if isinstance(form, Uniform | LogUniform | Steps):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not isinstance(form, Steps):
            return form.low <= value <= form.high
        exact = Decimal(repr(value))
        fits = form.first * form.step <= exact <= form.last * form.step
        return fits and (not form.whole or exact == exact.to_integral_value())
    return form.may_be(value) is True

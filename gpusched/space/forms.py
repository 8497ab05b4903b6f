"""The forms of a search space: how one hyperparameter is drawn from 128 random bits.

Rules: a draw depends on the bits alone and is the same on every platform (integers, ``decimal`` and the four basic
operations on floats; no libm); a value never lies outside the bounds, quantisation included. Bounds are inclusive.
"""

from __future__ import annotations

import abc
import decimal
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from gpusched.text import show

BITS = 128
INT_LIMIT = 2**63 - 1

# Correctly rounded ln and exp, twice the digits of a float: the float nearest to the result is the same everywhere.
_EXACT = decimal.Context(prec=40, Emin=-999_999, Emax=999_999)


class Form(abc.ABC):
    """A way to draw a value; ``str`` words it for people."""

    @abc.abstractmethod
    def draw(self, bits: int) -> object:
        """Return the value for this uniformly random number of 128 bits."""

    def may_be(self, value: object) -> bool | None:
        """Tell whether the value can be drawn; None for a continuous range, from which no single value is."""
        return None

    def options(self, limit: int) -> list[object] | None:
        """Return every value, each once; None if there are more than ``limit``."""
        return None


def same(left: object, right: object) -> bool:
    """Tell whether values are equal as a recipe's reader means it: ``1`` is ``1.0`` but not ``true``."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right


def identity(value: object) -> str:
    """Return equal texts for equal values, at any depth: ``1`` is ``1.0`` but not ``true``."""
    return json.dumps(_levelled(value), sort_keys=True)


def _levelled(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _levelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_levelled(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shown(options: Sequence[object]) -> str:
    more = f", ... ({len(options)})" if len(options) > 8 else ""
    return ", ".join(show(option) for option in options[:8]) + more


@dataclass(frozen=True, slots=True)
class Choice(Form):
    """One of the values, each equally likely; a value named twice is twice as likely. A constant has one value."""

    values: tuple[object, ...]

    def draw(self, bits: int) -> object:
        return self.values[bits * len(self.values) >> BITS]

    def may_be(self, value: object) -> bool:
        return any(same(option, value) for option in self.values)

    def options(self, limit: int) -> list[object] | None:
        distinct = list({identity(value): value for value in self.values}.values())
        return distinct if len(distinct) <= limit else None

    def __str__(self) -> str:
        return ("one of " if len(self.values) > 1 else "") + _shown(self.values)


@dataclass(frozen=True, slots=True)
class Range(Form):
    """Any number between the bounds; ``logarithmic``: even in the logarithm.

    ``prior``: a likely value; half of the draws lie within a quarter of the way from there to the bounds.
    """

    low: float
    high: float
    logarithmic: bool = False
    prior: float | None = None

    def draw(self, bits: int) -> float:
        bits = _towards(self, bits)
        if self.logarithmic:
            value = float(_log_between(Decimal(self.low), Decimal(self.high), bits))
        else:
            unit = (bits >> (BITS - 53)) / 2**53
            value = self.low * (1.0 - unit) + self.high * unit
        return min(max(value, self.low), self.high)

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{_beside(self)}"


@dataclass(frozen=True, slots=True)
class Steps(Form):
    """A multiple of ``step`` between ``first * step`` and ``last * step``: ``int`` and quantised forms.

    ``logarithmic``: a value is drawn log-uniformly, then rounded to the nearest multiple.
    """

    step: Decimal
    first: int
    last: int
    whole: bool
    logarithmic: bool = False
    prior: float | None = None

    def draw(self, bits: int) -> int | float:
        bits = _towards(self, bits)
        if self.logarithmic:
            half = Decimal("0.5")
            drawn = _log_between(self.first - half, self.last + half, bits)
            count = min(max(int(drawn.to_integral_value()), self.first), self.last)
        else:
            count = self.first + (bits * (self.last - self.first + 1) >> BITS)
        return self._value(count)

    def _value(self, count: int) -> int | float:
        value = _EXACT.multiply(self.step, Decimal(count))
        return int(value) if self.whole else float(value)

    def may_be(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        count = Decimal(repr(value)) / self.step
        return count == count.to_integral_value() and self.first <= count <= self.last

    def options(self, limit: int) -> list[object] | None:
        if self.last - self.first >= limit:
            return None
        return [self._value(count) for count in range(self.first, self.last + 1)]

    def __str__(self) -> str:
        text = f"{self.first * self.step:f} to {self.last * self.step:f}"
        text += f" in steps of {self.step:f}" if not self.whole or self.step != 1 else ""
        return text + _beside(self)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the bounds between which values are spread, before they are rounded."""
        step = float(self.step)
        return (self.first - 0.5) * step, (self.last + 0.5) * step


def _beside(form: Range | Steps) -> str:
    prior = f", likely near {form.prior:g}" if form.prior is not None else ""
    return (", logarithmic" if form.logarithmic else "") + prior


def place_of(form: Range | Steps, value: float) -> float:
    """Return the place of a value in its range, from 0 to 1, whatever is likely."""
    at, low, high = (Decimal(number) for number in (value, *form.ends))
    if form.logarithmic:
        at, low, high = _ln(at), _ln(low), _ln(high)
    place = float(_EXACT.divide(_EXACT.subtract(at, low), _EXACT.subtract(high, low)))
    return min(max(place, 0.0), 1.0)


def quantile_of(form: Range | Steps, value: float) -> float:
    """Return the number from 0 to 1 from which ``draw`` makes this value."""
    place = place_of(form, value)
    if form.prior is None:
        return place
    middle = place_of(form, form.prior)
    side = middle if place < middle else 1.0 - middle
    off = math.sqrt(abs(place - middle) / side) if side else 0.0
    return middle + math.copysign(off, place - middle) * side


def _towards(form: Range | Steps, bits: int) -> int:
    """Move a random number towards the place of the prior: its distance, as a share of that side, is squared."""
    if form.prior is None:
        return bits
    middle, unit = place_of(form, form.prior), (bits >> (BITS - 53)) / 2**53
    side = middle if unit < middle else 1.0 - middle
    off = (unit - middle) / side
    place = middle + off * abs(off) * side
    return min(int(place * 2**53), 2**53 - 1) << (BITS - 53)


_ln = functools.lru_cache(_EXACT.ln)


def _log_between(low: Decimal, high: Decimal, bits: int) -> Decimal:
    unit = _EXACT.divide(Decimal(bits >> (BITS - 64)), Decimal(2**64))
    start = _ln(low)
    width = _EXACT.subtract(_ln(high), start)
    return _EXACT.exp(_EXACT.fma(unit, width, start))


# ------------------------------------------------------------ reading them

RANGES = ("uniform", "loguniform", "int", "logint")
NAMES = ("choice", *RANGES, "const")


class FormError(ValueError):
    """A problem of a form, and what to do."""


def read(name: str, argument: object, quantum: object = None, prior: object = None) -> Form:
    """Read the form called ``name``; raises FormError."""
    for beside, given in (("q", quantum), ("prior", prior)):
        if given is not None and name not in RANGES:
            raise FormError(f"{beside} goes with {', '.join(RANGES)} only, not with {name}")
    if name == "const":
        return Choice((plain(argument),))
    if name == "choice":
        return _read_options(argument)
    form = _read_range(name, argument, quantum)
    if prior is None:
        return form
    likely = _number(prior, False)
    if not form.ends[0] <= likely <= form.ends[1]:
        raise FormError(f"prior {show(prior)} is outside the range ({form})")
    return replace(form, prior=likely)


def plain(value: object) -> object:
    """Return a value made of text, finite numbers, true, false, null, lists and maps; raises FormError for another."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise FormError(f"{value} is not finite")
    if isinstance(value, int) and abs(value) > INT_LIMIT:
        raise FormError("a whole number of more than 64 bits")
    if value is None or isinstance(value, str | int | float):
        return value
    raise FormError(f"a {type(value).__name__} is not a value for a hyperparameter")


def _read_options(argument: object) -> Form:
    if not isinstance(argument, list | tuple):
        raise FormError(f"choice needs a list, as in {{choice: [1, 2]}}; this is {show(argument)}")
    if not argument:
        raise FormError("choice is empty; give it at least one value")
    for option in argument:
        inner = [key for key in NAMES if isinstance(option, Mapping) and key in option]
        if inner:
            raise FormError(f"{inner[0]} inside choice: give it a key of its own, with when:")
    return Choice(tuple(plain(option) for option in argument))


def _read_range(name: str, argument: object, quantum: object) -> Range | Steps:
    if not isinstance(argument, list | tuple) or len(argument) != 2:
        shown = show(argument)
        raise FormError(f"{name} needs [lowest, highest], as in {{{name}: [1, 10]}}; not {shown}")
    whole = name.endswith("int")
    low, high = _number(argument[0], whole), _number(argument[1], whole)
    if low > high:
        raise FormError(f"reversed: {show(low)} is above {show(high)}; write [{high}, {low}]")
    if low == high:
        raise FormError(f"empty: both bounds are {show(low)}; write the plain value if you mean it")
    if name.startswith("log") and low <= 0:
        raise FormError(f"the bounds of {name} must be above 0, not {show(low)}")
    if quantum is not None or whole:
        step = 1 if quantum is None else _number(quantum, whole)
        return _read_steps(low, high, step, whole, name.startswith("log"))
    return Range(float(low), float(high), name == "loguniform")


def _read_steps(low: float, high: float, quantum: float, whole: bool, logarithmic: bool) -> Steps:
    if quantum <= 0:
        raise FormError(f"q must be above 0, not {show(quantum)}")
    step = Decimal(repr(quantum))
    first = math.ceil(_EXACT.divide(Decimal(repr(low)), step))
    last = math.floor(_EXACT.divide(Decimal(repr(high)), step))
    if last - first < 1:
        bounds = f"{show(low)} and {show(high)}"
        raise FormError(f"q is too big: between {bounds} lie fewer than two multiples of {quantum}")
    if max(abs(first), abs(last)) > INT_LIMIT:
        raise FormError(f"q is too small: {show(quantum)} for bounds of {show(low)}, {show(high)}")
    return Steps(step, first, last, whole, logarithmic)


def _number(value: object, whole: bool) -> float:
    """Read a finite number, an int if ``whole`` (1e3 is one)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        is_near = isinstance(value, str) and any(character.isdigit() for character in value)
        hint = " (quoted or misspelt?)" if is_near else ""
        raise FormError(f"{show(value)} is not a number{hint}")
    plain(value)
    if not whole:
        return value
    if value != int(value):
        raise FormError(f"{show(value)} is not a whole number; use uniform for fractions")
    plain(int(value))
    return int(value)

"""Reading a recipe's maps and lists into hyperparameters with forms and conditions; all problems at once."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusched.space import forms
from gpusched.space.forms import Form, FormError
from gpusched.text import did_you_mean, nearest, show

Path = tuple[str, ...]
Finding = tuple[Path, str]
"""A key of the space, and its problem."""
Whens = list[tuple[Path, Mapping[str, object]]]
"""The ``when:`` maps that a key stands under, each with where it is written."""

MAX_GRID = 100_000

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(slots=True)
class Leaf:
    """One hyperparameter, present only if each key in ``conditions`` has one of the values."""

    path: Path
    form: Form | None
    whens: Whens = field(default_factory=list)
    conditions: list[tuple[Path, tuple[object, ...]]] = field(default_factory=list)


class Reader:
    """Collects ``leaves`` and ``problems``: ``read`` first, then ``resolve``."""

    def __init__(self) -> None:
        self.leaves: dict[Path, Leaf] = {}
        self.groups: set[Path] = set()
        self.problems: list[Finding] = []

    def complain(self, path: Path, message: str) -> None:
        """Note a problem once: a group's condition is bound for each of its keys."""
        if (path, message) not in self.problems:
            self.problems.append((path, message))

    def read(self, raw: object) -> None:
        if not isinstance(raw, Mapping) or not raw:
            self.complain((), "needs a map of at least one key, as in lr: {loguniform: [1e-4, 1]}")
            return
        self._read_group((), raw, [])

    def _read_group(self, path: Path, raw: Mapping[str, object], whens: Whens) -> None:
        self.groups.add(path)
        whens = self._with_when(path, raw, whens) if path else whens
        for name, value in raw.items():
            here = (*path, name)
            if name == "when" and path:
                continue
            if name in forms.NAMES:
                self.complain(here, f"{name} is the name of a form and cannot name a key")
            elif not KEY.fullmatch(name):
                rule = "letters, digits, _ and -, up to 64; a.b is written as a: {b: ..}"
                self.complain(here, f"a key is made of {rule}")
            elif not isinstance(value, Mapping):
                self._read_value(here, value, whens)
            elif any(form in value for form in forms.NAMES):
                self._read_form(here, value, whens)
            elif not value or set(value) == {"when"}:
                self.complain(here, "empty; give it a form, as in {choice: [1, 2]}, or keys")
            elif hint := _foreign(value):
                self.complain(here, hint)
            else:
                self._read_group(here, value, whens)

    def _read_value(self, path: Path, value: object, whens: Whens) -> None:
        """Read a constant, or something that was meant to be a form."""
        if value is None:
            self.complain(path, "no value; write {const: null} if null is meant")
        elif isinstance(value, list | tuple):
            meant = _ELSEWHERE.get(path[-1].lower()) or nearest(path[-1], forms.NAMES)
            hint = f"did you mean the form {meant}? " if meant else ""
            self.complain(path, f"a list is not a value; {hint}{_INSTEAD} the list on")
        elif isinstance(value, str) and _SWEEP.fullmatch(value):
            self.complain(path, f"{show(value)} is text, and one value; {_INSTEAD} the text on")
        else:
            self._add(path, "const", value, whens)

    def _read_form(self, path: Path, raw: Mapping[str, object], whens: Whens) -> None:
        names = [name for name in raw if name in forms.NAMES]
        if len(names) > 1:
            self.complain(path, f"{' and '.join(names)} together; a key has one form")
            return
        for name in raw:
            if name not in (*names, "q", "prior", "when"):
                meant = nearest(name, ["q", "prior", "when"]) or "q, prior or when"
                hint = f"did you mean {meant}?"
                if name == "log":  # Optuna's word
                    logarithmic = "logint" if "int" in names[0] else "loguniform"
                    hint = f"a range even in the logarithm is {{{logarithmic}: [1, 1000]}}"
                self.complain((*path, name), f"unknown beside {names[0]}; {hint}")
        beside = raw.get("q"), raw.get("prior")
        self._add(path, names[0], raw[names[0]], self._with_when(path, raw, whens), *beside)

    def _add(self, path: Path, name: str, argument: object, whens: Whens, *beside: object) -> None:
        form = None
        try:
            form = forms.read(name, argument, *beside)
        except FormError as error:
            self.complain(path, str(error))
        self.leaves[path] = Leaf(path, form, whens)

    def _with_when(self, path: Path, raw: Mapping[str, object], whens: Whens) -> Whens:
        when = raw.get("when")
        if "when" not in raw:
            return whens
        if not isinstance(when, Mapping) or not when:
            self.complain((*path, "when"), "needs a map of key to value, as in {opt: sgd}")
            return whens
        return [*whens, (path, when)]

    # ------------------------------------------------------------ conditions

    def resolve(self) -> list[Path]:
        """Bind the conditions to the keys they name; return the keys in an order in which they can be drawn."""
        for leaf in self.leaves.values():
            for place, when in leaf.whens:
                for name, values in when.items():
                    self._bind(leaf, place, name, values)
        graph = {path: [to for to, _ in leaf.conditions] for path, leaf in self.leaves.items()}
        try:
            order = list(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            circle = list(reversed(error.args[1]))
            story = " -> ".join(".".join(path) for path in circle)
            why = f"the conditions go in a circle: {story}; remove one of them"
            self.complain((*circle[0], "when"), why)
            return []
        return order

    def _bind(self, leaf: Leaf, place: Path, name: str, values: object) -> None:
        where = (*place, "when", name)
        target = self._find(place, name, where)
        if target is None:
            return
        allowed = tuple(values) if isinstance(values, list | tuple) else (values,)
        leaf.conditions.append((target, allowed))
        form = self.leaves[target].form
        if form is None:
            return
        if not allowed:
            self.complain(where, "no value; the key would never be there")
        for value in allowed:
            possible = form.may_be(value)
            if possible is None:
                self.complain(
                    where, f"{name} is drawn from {form}; a condition needs single values"
                )
            elif not possible:
                self.complain(where, f"{name} is never {show(value)}; it is {form}")

    def _find(self, place: Path, name: str, where: Path) -> Path | None:
        """Return the key that a condition names: beside it, or from the top."""
        parts = tuple(name.split("."))
        for path in ((*place[:-1], *parts), parts):
            if path in self.leaves:
                return path
            if path in self.groups:
                self.complain(where, f"{name} is a group of keys; name one of them")
                return None
        beside = [path[-1] for path in self.leaves if path[:-1] == place[:-1]]
        known = [*beside, *(".".join(path) for path in self.leaves)]
        self.complain(where, f"the space has no key {name}{did_you_mean(name, known)}")
        return None


# ------------------------------------------------------------ other tools' ways to write a space
# Taken literally they would be constants, and search nothing.

_ELSEWHERE = {
    **{"log": "loguniform", "float": "uniform", "randint": "int"},
    **dict.fromkeys(("categorical", "values", "categories", "grid", "grid_search"), "choice"),
}
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("minval", "maxval"))
_BESIDE = {"distribution", "type", "log", "scale", "q", "step", "name", "count", "base"}
_WORDS = {"value", *_BESIDE, *(name for pair in _BOUNDS for name in pair)}
_INSTEAD = "write {uniform: [..]} or {loguniform: [..]} for a range, {choice: [..]} to draw one, {const: ..} to pass"
_NUMBER = r"[-+]?\d*\.?\d+(e[-+]?\d+)?"
#: ``1e-4..1``, ``0.1,0.01`` and ``choice(0.1, 0.01)``, as Hydra's sweeps and Ray Tune's functions are written.
_SWEEP = re.compile(
    rf"{_NUMBER}( *(,|\.\.|to) *{_NUMBER})+|(\w+\.)?(\w*uniform|choice|range|randint|interval) *\(.*"
)


def _foreign(value: Mapping[str, object]) -> str:
    """Return what to write instead of ``{min: 0, max: 1}`` and ``{value: 1}``; empty for others."""
    is_range = any({low, high} <= set(value) for low, high in _BOUNDS)
    is_known = set(value) <= _WORDS and not any(isinstance(v, Mapping) for v in value.values())
    if not is_known or not (is_range or set(value) == {"value"}):
        return ""
    return f"{' and '.join(value)} would be constants; {_INSTEAD} the map on"

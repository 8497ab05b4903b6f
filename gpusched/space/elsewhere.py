"""Other tools' ways to write a search space: taken literally they would be constants, and search nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpusched.space.forms import NAMES
from gpusched.text import show

_CALL = re.compile(r"\s*(?:[A-Za-z_]+\.)*(?:suggest_|q|)([A-Za-z_]+)\s*\(")
_CALLS = {
    **{name: name for name in NAMES},
    **{"qlog": "loguniform", "log_uniform": "loguniform", "float": "uniform"},
    **{"randint": "int", "lograndint": "logint", "categorical": "choice", "grid_search": "grid"},
}
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("minval", "maxval"))
_BESIDE = {"distribution", "type", "log", "scale", "q", "step", "name", "count", "base"}
_LISTS = ("values", "categories", "choices", "vals", "_value")


def call(value: object) -> str:
    """Return the form to write instead of ``tune.loguniform(1e-4, 1)``; empty for other values."""
    found = _CALL.match(value) if isinstance(value, str) else None
    form = _CALLS.get(found[1].lower()) if found else None
    if form is None:
        return ""
    return f"{show(value)} is text here, not a range; write {_example(form)}, or {{const: ..}} if text is meant"


def bounds(value: Mapping[str, object]) -> str:
    """Return the form to write instead of ``{min: 0, max: 1}`` or ``{values: [1, 2]}``; empty for other maps."""
    for low, high in _BOUNDS:
        if {low, high} <= set(value) <= {low, high, *_BESIDE}:
            a, b = value[low], value[high]
            if all(isinstance(end, int | float) and not isinstance(end, bool) for end in (a, b)):
                whole = isinstance(a, int) and isinstance(b, int)
                form = "int" if whole else "uniform"
                ends = f"[{show(a)}, {show(b)}]"
                return (
                    f"{low} and {high} would be two constants; write {{{form}: {ends}}} or {{log{form}: {ends}}}, "
                    f"or {{const: ..}} if a map is meant"
                )
    for name in _LISTS:
        if isinstance(value.get(name), list | tuple) and set(value) <= {name, "_type", *_BESIDE}:
            return f"{name} is not a form; write {{choice: {show(value[name])}}}"
    return ""


def _example(form: str) -> str:
    return f"{{{form}: [1, 2, 3]}}" if form in ("choice", "grid") else f"{{{form}: [1, 10]}}"

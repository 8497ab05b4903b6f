"""The table of trials: its columns, the order, and which trials match a filter. Pure.

Hyperparameters stand before curve and launches; what has no room is reached by scrolling sideways.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.model import STATES, Standing, TrialRow
from gpusched.text import clean, flat, hparam_texts, show_metric

CURVE_WIDTH = 12
#: Columns that are no hyperparameters; these last ones stand behind the hyperparameters.
LAST = ("curve", "launches")

_COMPARISON = re.compile(r"([^<>=\s]+)(<=|>=|<|>|=)(\S+)")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class TableChoice:
    """Choices of the person who watches. ``sort``: name of a column; ``wanted``: see ``is_wanted``."""

    sort: str = "metric"
    is_reversed: bool = False
    wanted: str = ""


def columns(view: Standing) -> list[str]:
    """Return the names of the columns, those of the hyperparameters dotted."""
    names = dict.fromkeys(name for trial in view.trials for name, _ in flat(trial.hparams))
    return ["trial", "state", "step", "metric", "atoms", *names, *LAST]


def value(trial: TrialRow, column: str) -> Any:
    """Return what a column compares: a number, a text, or None."""
    known = {
        "trial": trial.id,
        "state": trial.state,
        "step": trial.step,
        "metric": trial.metric,
        "atoms": trial.atoms,
        "curve": trial.best_metric,
        "launches": trial.incarnation,
    }
    return known[column] if column in known else dict(flat(trial.hparams)).get(column)


def cells(view: Standing, trial: TrialRow, names: list[str], colour: str | None) -> list[Text]:
    """Word the cells of a trial. ``colour``: that of its atoms, None where it has none."""
    glyph, style = marks.state_of(trial.state)
    hparams = dict(hparam_texts(trial.hparams))
    best = view.best is not None and view.best.trial == trial.id
    shown = {
        "trial": Text(str(trial.id), "bold" if best else ""),
        "state": Text(f"{glyph} {trial.state}", style),
        "step": Text(str(trial.step or "-")),
        "metric": Text(show_metric(trial.metric), "bold" if best else ""),
        "atoms": Text(str(trial.atoms or "-"), colour or ""),
        "curve": Text(marks.sparkline(trial.curve, CURVE_WIDTH), marks.CURVE),
        "launches": Text(str(trial.incarnation or "-")),
    }
    return [
        shown[name] if name in shown else Text(hparams.get(clean(name, 60), "")[:24])
        for name in names
    ]


def order(view: Standing, choice: TableChoice) -> list[TrialRow]:
    """Choose and sort the trials; those without a value in the column come last in either direction."""
    found = [trial for trial in view.trials if is_wanted(view, trial, choice.wanted)]
    known = [trial for trial in found if value(trial, choice.sort) is not None]
    numbers = all(isinstance(value(trial, choice.sort), int | float) for trial in known)

    def key(trial: TrialRow) -> Any:
        here = value(trial, choice.sort)
        if choice.sort == "state":
            return STATES.index(here) if here in STATES else len(STATES)
        return here if numbers else str(here)

    falls = choice.sort in ("metric", "curve", "step", "atoms", "launches")
    falls = falls and not (choice.sort in ("metric", "curve") and view.mode == "min")
    known.sort(key=key, reverse=falls != choice.is_reversed)
    return known + [trial for trial in found if value(trial, choice.sort) is None]


def is_wanted(view: Standing, trial: TrialRow, wanted: str) -> bool:
    """Tell whether a trial has every word: a state, ``live``, ``lr<0.01``, a part of its hyperparameters or error."""
    return all(_has(view, trial, word) for word in wanted.split())


def _has(view: Standing, trial: TrialRow, word: str) -> bool:
    if word == "live":
        return trial.is_live
    if word in STATES:
        return trial.state == word
    if (compared := _COMPARISON.fullmatch(word)) is not None:
        name, sign, text = compared.groups()
        have = value(trial, "metric" if name == view.metric else name)
        try:
            return have is not None and _COMPARE[sign](float(have), float(text))
        except (TypeError, ValueError):
            return sign == "=" and str(have) == text
    hparams = " ".join(f"{name}={shown}" for name, shown in hparam_texts(trial.hparams))
    return word.lower() in f"{trial.id} {hparams} {trial.error or ''}".lower()

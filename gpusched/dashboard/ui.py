"""The choices of the person who watches, and the effect of each key. Pure: ``press`` answers with a new ``UiState``.

A selection is a trial's number, not a row, so it stays on its trial while the table moves under it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpusched.dashboard.model import STATES, TrialView, View

SORTS = ("metric", "trial", "state", "step", "atoms")
#: Contents of the lower half of a narrow screen, in the order of the tab key.
PANELS = ("both", "decisions", "rungs", "devices", "none")

KEYS = (
    ("↑ ↓  j k", "select a trial"),
    ("PgUp PgDn Home End", "move faster"),
    ("Enter  l", "the trial's configuration, story and log"),
    ("Esc  h", "back"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("Tab  d", "next panel: decisions, rungs, devices, none"),
    ("?", "this help"),
    ("q", "detach; the experiment goes on"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UiState:
    """``top``: the first row of the table that is shown. ``away_s``: how long the daemon has been silent, if it is.

    ``note`` is a remark of the moment (what a key press did).
    """

    sort: str = "metric"
    reverse: bool = False
    selected: int | None = None
    top: int = 0
    detail: bool = False
    panel: str = "both"
    help: bool = False
    note: str = ""
    away_s: float | None = None
    #: Effect of Ctrl-C in this dashboard, for the help; empty: nothing special.
    interrupt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """The selected trial's story and the end of its log, which are not in the view."""

    story: tuple[str, ...] = ()
    log_name: str = ""
    log: tuple[str, ...] = ()


def order(view: View, ui: UiState) -> list[TrialView]:
    """Sort the trials for the table. Those without a metric come last in either direction."""
    sign = -1.0 if view.mode == "max" else 1.0
    keys: dict[str, Callable[[TrialView], float]] = {
        "metric": lambda trial: sign * trial.metric if trial.metric is not None else 0.0,
        "trial": lambda trial: trial.id,
        "state": lambda trial: STATES.index(trial.state) if trial.state in STATES else len(STATES),
        "step": lambda trial: -trial.step,
        "atoms": lambda trial: -trial.atoms,
    }
    key = keys.get(ui.sort, keys["metric"])
    # Two stable sorts: by what was asked, and before that by metric, so that equals stay in a useful order.
    by_metric = sorted(view.trials, key=keys["metric"])
    found = sorted(by_metric, key=key, reverse=ui.reverse)
    return sorted(found, key=lambda trial: trial.metric is None) if ui.sort == "metric" else found


def window(ui: UiState, ids: Sequence[int], rows: int) -> int:
    """Return the first row to show, so that the selected trial is among ``rows`` rows."""
    top = max(0, min(ui.top, len(ids) - rows))
    if ui.selected in ids:
        place = ids.index(ui.selected)
        top = min(max(top, place - rows + 1), place)
    return max(0, top)


def press(ui: UiState, key: str, ids: Sequence[int], rows: int) -> UiState:
    """Do what a key means. ``ids``: the trials in the order shown; ``rows``: how many of them at a time."""
    change = dataclasses.replace
    ui = change(ui, note="")
    if ui.help:
        return change(ui, help=False)
    match key:
        case "?":
            return change(ui, help=True)
        case "s":
            following = SORTS[(SORTS.index(ui.sort) + 1) % len(SORTS)]
            return change(ui, sort=following, reverse=False, top=0)
        case "r":
            return change(ui, reverse=not ui.reverse, top=0)
        case "tab" | "d":
            return change(ui, panel=PANELS[(PANELS.index(ui.panel) + 1) % len(PANELS)])
        case "backtab":
            return change(ui, panel=PANELS[(PANELS.index(ui.panel) - 1) % len(PANELS)])
        case "esc" | "left" | "h":
            return change(ui, detail=False) if ui.detail else change(ui, selected=None)
        case "enter" | "right" | "l":
            ui = _move(ui, ids, 0, rows)
            return change(ui, detail=ui.selected is not None and (not ui.detail or key != "enter"))
        case _:
            return _jump(ui, key, ids, rows)


def _jump(ui: UiState, key: str, ids: Sequence[int], rows: int) -> UiState:
    jumps = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -rows, "pgdn": rows}
    jumps |= {"home": -len(ids), "g": -len(ids), "end": len(ids), "G": len(ids)}
    return _move(ui, ids, jumps[key], rows) if key in jumps else ui


def _move(ui: UiState, ids: Sequence[int], by: int, rows: int) -> UiState:
    """Move the selection; the first move, and one from a trial that is gone, begins at the top of what is seen."""
    if not ids:
        return dataclasses.replace(ui, selected=None)
    known = ui.selected in ids
    place = ids.index(ui.selected) + by if known else ui.top + by * (abs(by) > 1)
    place = max(0, min(place, len(ids) - 1))
    ui = dataclasses.replace(ui, selected=ids[place])
    return dataclasses.replace(ui, top=window(ui, ids, rows))

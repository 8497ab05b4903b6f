"""The frame of the screen: the search and its atoms at the top; tabs, remarks, keys and their help. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from rich.text import Text

from gpusched.dashboard import devices, marks
from gpusched.dashboard.marks import QUIET, clicking, fit, styled
from gpusched.dashboard.model import LIVE, DeviceRow, Standing
from gpusched.text import count, show_clock, show_duration, show_hparams, show_metric


def top(view: Standing, width: int, height: int, away_s: float | None = None) -> list[Text]:
    """Compose the header and the strip of atoms for a screen of this size. ``away_s``: silence of the daemon."""
    rows = 4 if height >= 20 else 3 if height >= 14 else 2
    lines = [marks.beside(_title(view, width), _standing(view, away_s), width)]
    if rows >= 3:
        lines.append(_progress(view, width, away_s))
    best, counts = _best(view, width), _counts(view)
    if best.cell_len + counts.cell_len + 3 <= width:
        lines.append(marks.beside(best, counts, width))
    else:
        lines += [best, counts] if rows >= 4 else [best]
    lines += devices.strip(view, width, rows=2 if height < 20 else 4 if height < 36 else 7)
    return [fit(line, width) for line in lines]


def _title(view: Standing, width: int) -> Text:
    title = styled(view.experiment, "bold")
    if width >= 60:
        title.append(f"  {view.policy}", "cyan")
    if width >= 100:
        title.append(f" on {count(view.atoms.total, 'atom')}", QUIET)
    return title


def _standing(view: Standing, away_s: float | None) -> Text:
    glyph, style = marks.EXPERIMENT.get(view.state, marks.UNKNOWN)
    if away_s is not None and not view.is_over:
        ago = show_duration(away_s)
        return styled(f"{glyph} daemon is away, last seen {ago} ago", "bold yellow")
    line = styled(f"{glyph} {view.state}", style)
    if view.state in ("running", "starting"):
        line.append(f"  {show_clock(math.ceil(_time_left_s(view, away_s)))} left", "bold")
    elif view.ending:
        line.append(f": {view.ending}", style)
    return line


def _time_left_s(view: Standing, away_s: float | None) -> float:
    """Return the time left; the clock runs on while the daemon is silent."""
    return max(0.0, view.time_left_s - (away_s or 0.0))


def _progress(view: Standing, width: int, away_s: float | None) -> Text:
    over = view.is_over or view.state == "interrupted"
    passed_s = view.deadline_s - (view.time_left_s if over else _time_left_s(view, away_s))
    share = passed_s / view.deadline_s if view.deadline_s > 0 else 1.0
    end = f" {show_clock(passed_s)} of {show_clock(view.deadline_s)}"
    style = "green" if share < 0.9 or over else "yellow"
    return marks.bar(share, max(4, width - len(end)), style).append(end, QUIET)


def _best(view: Standing, width: int) -> Text:
    line = styled("best   ", QUIET)
    best = view.best
    if best is None:
        return line.append("no model saved yet", QUIET)
    line.append(f"{view.metric} ").append(show_metric(best.metric), "bold green")
    where = Text(f"  trial {best.trial} at step {best.step}")
    line.append_text(clicking(where, f"choose({best.trial})"))
    if width >= 120 and best.hparams:
        line.append(f"  {show_hparams(best.hparams)}", QUIET)
    return line


def _counts(view: Standing) -> Text:
    """``23 trials: 4 live, 17 paused, 1 failed``; a click on a count shows these trials alone."""
    counts = dict(view.trial_counts)
    live = sum(counts.pop(state, 0) for state in (*LIVE, "pending"))
    line = clicking(Text(count(view.trials_total, "trial")), "filter('')")
    separator = ": "
    for state, number in {"live": live, **counts}.items():
        if number:
            style = "green" if state == "live" else marks.state_of(state)[1]
            part = clicking(styled(f"{number} {state}", style), f"filter('{state}')")
            line.append(separator).append_text(part)
            separator = ", "
    return line


# ---------------------------------------------------------------- tabs and remarks

TABS = ("search", "curves", "trial", "log", "decisions", "devices")


def tabs(chosen: str, width: int) -> Text:
    """Compose the names of the panels; with little room their first letters."""
    line = Text()
    letters = 9 if width >= sum(len(tab) + 2 for tab in TABS) else 4
    for tab in TABS:
        style = "bold reverse" if tab == chosen else QUIET
        line.append_text(clicking(styled(f" {tab[:letters]} ", style), f"open('{tab}')"))
    return line


def remarks(view: Standing | None, remark: str, width: int) -> list[Text]:
    """Word the warnings of the view, and the remark of the moment."""
    warnings = [] if view is None else [*view.warnings]
    if view is not None and view.state == "interrupted":
        warnings.append("no daemon runs this search; 'gpusched resume' goes on with the search")
    told = [(f"! {warning}", "bold yellow") for warning in warnings]
    told += [(f"» {remark}", "bold cyan")] if remark else []
    return [
        styled(part, style)
        for text, style in told
        for part in textwrap.wrap(text, max(20, width), subsequent_indent="  ")
    ]


# ---------------------------------------------------------------- keys


class Shortcut(NamedTuple):
    """Keys and their action; ``shown``, ``hint``: for the last line; ``meaning``: for the help."""

    keys: str
    action: str
    shown: str
    hint: str
    meaning: str


#: Keys of every screen; those of the table, and numbers, are bound where they are needed.
LOOKING = (
    Shortcut(
        "", "move(-1)", "↑↓", "select", "select a trial, or scroll where Enter or a click has led"
    ),
    Shortcut("enter,l", "enter", "Enter", "details", "into the panel, to all of its lines"),
    Shortcut("escape,h,backspace", "back", "Esc", "back", "back to the trials"),
    Shortcut("q,Q", "app.detach", "q", "detach", "detach; the experiment goes on"),
    Shortcut("question_mark", "open('help')", "?", "help", "this help"),
    Shortcut("tab", "tab(1)", "Tab", "panels", f"next panel; by number: {', '.join(TABS)}"),
    Shortcut("f", "ask_filter", "f", "filter", "trials with these words, states among them"),
    Shortcut("slash", "ask_search", "/", "search", "search the panel; n N: next, previous"),
    Shortcut("s", "sort('')", "s", "sort", "sort by the next column; r: reverse"),
    Shortcut("t", "time", "t", "", "curves over steps, or over time"),
)
#: Keys that ask the daemon for a change; shown where that is allowed.
STEERING = (
    Shortcut("p", "app.pause", "p", "pause", "pause or unpause the trial"),
    Shortcut("x", "app.stop_trial", "x", "stop trial", "stop the trial for good"),
    Shortcut("plus", "app.more_time", "+", "10 min", "ten minutes more"),
    Shortcut("c", "app.try_configuration", "c", "try", "try a configuration of your own"),
    Shortcut("S", "app.stop_search", "S", "stop search", "stop the search"),
)


def keys(hints: Mapping[str, str], width: int, *, steers: bool) -> Text:
    """Compose the last line: as many keys as have room. ``hints``: by action, another hint than the key's."""
    line = Text()
    for key in (*LOOKING, *(STEERING if steers else ())):
        hint = hints.get(key.action, key.hint)
        if hint and line.cell_len + len(key.shown) + len(hint) + 4 <= width:
            text = styled(key.shown, "bold cyan").append(f" {hint}", QUIET)
            line.append("   " if line else "").append_text(clicking(text, key.action))
    return line


_ATOMS = {
    "held": "held by trial 7",
    "free": "free",
    "draining": "trial 7 has left; the release is being confirmed",
    "quarantined": "not used until readmitted ('gpusched gpus --readmit')",
}


def help_lines(ctrl_c: str, width: int, *, steers: bool) -> list[Text]:
    """List the keys and the meaning of the glyphs. ``ctrl_c``: the meaning of Ctrl-C."""
    needs = "" if steers else "; needs --steer"
    keys = [(key.shown, key.meaning) for key in LOOKING]
    keys += [(key.shown, key.meaning + needs) for key in STEERING] + [("Ctrl-C", ctrl_c)]
    column = max(len(key) for key, _ in keys) + 2
    lines: list[Text] = []
    for key, meaning in keys:
        lines += _explained(styled(f"  {key:<{column}}", "cyan"), meaning, width)
    states = [styled(f" {glyph} {s:<10}", style) for s, (glyph, style) in marks.TRIAL.items()]
    across = max(1, (width - 1) // 13)
    rows = [states[start : start + across] for start in range(0, len(states), across)]
    lines += [marks.heading("trials", width), *(Text.assemble(" ", *row) for row in rows)]
    lines.append(marks.heading("atoms", width))
    for state, meaning in _ATOMS.items():
        drawn = devices.block(DeviceRow(id="", state=state, trial=7), 7, {7: "color(110)"})
        lines += _explained(Text.assemble("  ", drawn, "  "), meaning, width)
    return lines


def _explained(sign: Text, meaning: str, width: int) -> list[Text]:
    """Put a meaning beside its key or sign, over as many lines as needed."""
    column = sign.cell_len
    first, *more = textwrap.wrap(meaning, max(10, width - column))
    return [sign.append(first), *(Text(" " * column + part) for part in more)]

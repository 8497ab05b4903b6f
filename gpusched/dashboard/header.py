"""The top of the screen: what runs, how long still, how good so far, and which trial holds which atom. Pure."""

from __future__ import annotations

import math

from rich.text import Text

from gpusched.dashboard import devices, marks
from gpusched.dashboard.marks import QUIET, clicking, fit, styled
from gpusched.dashboard.model import LIVE, Standing
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

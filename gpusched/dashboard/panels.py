"""Texts of the dashboard: the head, warnings, one trial, curves, and the strip of atoms. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.marks import QUIET, Points, chart, fit, styled
from gpusched.dashboard.model import LIVE, DeviceRow, Standing, TrialRow, device_notes, idle_atoms
from gpusched.text import (
    clean,
    count,
    hparam_texts,
    show_clock,
    show_duration,
    show_hparams,
    show_memory,
    show_metric,
)

# ---------------------------------------------------------------- the head


def head(view: Standing, width: int, away_s: float | None = None) -> Text:
    """Word the search, its time and its best model in three lines. ``away_s``: silence of the daemon."""
    title = styled(view.experiment, "bold").append(f"  {view.policy}", "cyan")
    title.append(f" on {count(view.atoms.total, 'atom')}", QUIET)
    left_s = max(0.0, view.time_left_s - (away_s or 0.0))
    over = view.is_over or view.state == "interrupted"
    passed_s = view.deadline_s - (view.time_left_s if over else left_s)
    share = passed_s / view.deadline_s if view.deadline_s > 0 else 1.0
    end = f" {show_clock(passed_s)} of {show_clock(view.deadline_s)}"
    progress = marks.bar(
        share, max(4, width - len(end)), "green" if share < 0.9 or over else "yellow"
    )
    lines = [
        marks.beside(title, _standing(view, left_s, away_s), width),
        progress.append(end, QUIET),
        marks.beside(_best(view), _counts(view), width),
    ]
    return Text("\n").join(fit(line, width) for line in lines)


def _standing(view: Standing, left_s: float, away_s: float | None) -> Text:
    glyph, style = marks.EXPERIMENT[view.state]
    if away_s is not None and not view.is_over:
        return styled(
            f"{glyph} daemon is away, last seen {show_duration(away_s)} ago", "bold yellow"
        )
    line = styled(f"{glyph} {view.state}", style)
    if view.state in ("running", "starting"):
        line.append(f"  {show_clock(math.ceil(left_s))} left", "bold")
    elif view.ending:
        line.append(f": {view.ending}", style)
    return line


def _best(view: Standing) -> Text:
    if (best := view.best) is None:
        return styled("no model is saved yet", QUIET)
    line = styled(f"best {view.metric} {show_metric(best.metric)}", "bold green")
    return line.append(f"  trial {best.trial} at step {best.step}: {show_hparams(best.hparams)}")


def _counts(view: Standing) -> Text:
    live = sum(view.trial_counts.get(state, 0) for state in LIVE)
    others = {state: n for state, n in view.trial_counts.items() if state not in LIVE and n}
    return styled(", ".join(f"{n} {state}" for state, n in {"live": live, **others}.items()), QUIET)


def remarks(view: Standing) -> Text:
    """Word what the policy notes and what is wrong, a line each; empty where there is nothing."""
    told = [*view.warnings, *device_notes(view)]
    if view.state == "interrupted":
        told.append(f"no daemon runs this search; 'gpusched resume {view.experiment}' continues it")
    lines = [Text(note, "cyan") for note in view.notes]
    return Text("\n").join([*lines, *(Text(f"! {text}", "bold yellow") for text in told)])


# ---------------------------------------------------------------- one trial


def detail(view: Standing, trial: TrialRow | None, story: Sequence[str]) -> Text:
    """Word one trial in full: its hyperparameters, its metrics, and the story that ``explain`` tells."""
    if trial is None:
        return styled("no trial yet", QUIET)
    hparams = (f"{name}={shown}" for name, shown in hparam_texts(trial.hparams))
    lines = [styled("  ".join(hparams), "cyan")]
    lines += [
        Text(f"{name} {show_metric(value) if isinstance(value, float) else value}")
        for name, value in trial.metrics.items()
    ]
    if trial.best_metric is not None and trial.best_step != trial.step:
        lines.append(
            Text(f"best {view.metric} {show_metric(trial.best_metric)} at step {trial.best_step}")
        )
    if trial.error:
        lines.append(styled(clean(trial.error), "bold red"))
    return Text("\n").join([*lines, Text(), *(Text(clean(text)) for text in story)])


# ---------------------------------------------------------------- curves


def curves(view: Standing, selected: int | None, width: int, rows: int) -> Text:
    """Draw every trial's metric over its steps, the selected one on top; the worst quarter may lie outside."""
    on_top = view.trial(selected) or view.trial(view.best.trial if view.best else None)
    drawn = []
    for trial in sorted(view.trials, key=lambda trial: (trial is on_top, trial.is_live)):
        style = "bold yellow" if trial is on_top else marks.CURVE if trial.is_live else marks.LINE
        drawn.append((_by_step(trial), style))
    title = styled(f"{view.metric} over steps", QUIET)
    good = view.trials[: len(view.trials) - len(view.trials) // 4]
    values = [value for trial in good for value in trial.curve if value is not None]
    return Text("\n").join([fit(title, width), *chart(drawn, width, rows - 1, values)])


def _by_step(trial: TrialRow) -> Points:
    """Return (step, metric); a view's curve is evenly spaced over the reports."""
    last = max(1, len(trial.curve) - 1)
    first = trial.first_step if len(trial.curve) > 1 else trial.step
    return tuple(
        (first + (trial.step - first) * place / last, value)
        for place, value in enumerate(trial.curve)
    )


# ---------------------------------------------------------------- atoms

#: Least width of a column of figures.
COLUMN = 58


def _state(device: DeviceRow) -> str:
    """Return the device's state in a word; one that a stranger holds is busy."""
    why = device.reason.removeprefix(f"{device.name}: ")
    is_busy = device.state == "quarantined" and why.startswith(("held by ", "leased by "))
    return "busy" if is_busy else device.state


def strip(view: Standing, width: int, rows: int) -> Text:
    """Draw the atoms: a line each with figures, side by side where they fit, else blocks; then why some are idle."""
    if not view.devices:
        return styled("waiting for the devices", QUIET)
    why = [fit(styled(line, "yellow"), width) for line in idle_atoms(view)][: max(1, rows // 2)]
    rows = max(1, rows - len(why))
    across = max(1, width // COLUMN)
    if any(d.utilisation is not None for d in view.devices):
        lines = [_figures(device, marks.colours(view)) for device in view.devices]
        down = -(-len(lines) // across)
        if down <= rows:
            return Text("\n").join([*_side_by_side(lines, down, width // across), *why])
    return Text("\n").join([*_blocks(view, width)[:rows], *why])


def _side_by_side(lines: Sequence[Text], down: int, width: int) -> list[Text]:
    rows = []
    for row in range(down):
        line = Text()
        for cell in lines[row::down]:
            cell = fit(cell, width - 2)
            line.append_text(cell).append(" " * (width - cell.cell_len))
        rows.append(line)
    return rows


def _figures(device: DeviceRow, colours: dict[int, str]) -> Text:
    """Word one device: its trial or state, load, memory, temperature and power."""
    line = styled(f"{device.name[-12:]:<8} ", "bold")
    if device.state == "held" and device.trial is not None:
        line.append("▪ ", colours[device.trial]).append(f"trial {device.trial:<4} ")
    else:
        line.append(f"{_state(device):<12} ", marks.DEVICE[device.state])
    if device.utilisation is not None:
        line.append_text(marks.bar(device.utilisation, 6)).append(f" {device.utilisation:>4.0%}")
    if device.memory_used_bytes is not None:
        line.append(f" {show_memory(device.memory_used_bytes, device.memory_total_bytes):>12}")
    if device.temperature_c is not None:
        style = "yellow" if device.temperature_c >= 85 else QUIET
        line.append(f" {device.temperature_c:.0f}°C", style)
    if device.power_w is not None:
        line.append(f" {device.power_w:.0f} W", QUIET)
    return line


def _blocks(view: Standing, width: int) -> list[Text]:
    """Draw a block an atom, named by its trial; neighbours that one trial holds are one block."""
    colours = marks.colours(view)
    cell = max(max(len(_label(device)) for device in view.devices) + 2, 5)
    across = max(1, width // cell)
    rows = []
    for start in range(0, len(view.devices), across):
        line = Text()
        shown = view.devices[start : start + across]
        for (state, trial), run in groupby(shown, lambda d: (d.state, d.trial)):
            members = list(run)
            label = _label(members[0]).center(cell * len(members) - 2)
            style = marks.DEVICE[state]
            if state == "held" and trial is not None:
                style = f"black on {colours[trial]}"
            line.append("[", QUIET).append(label, style).append("]", QUIET)
        rows.append(line)
    return rows


def _label(device: DeviceRow) -> str:
    if device.state in ("held", "draining"):
        mark = "~" if device.state == "draining" else ""
        return "?" if device.trial is None else f"{mark}{device.trial}"
    return {"free": "·", "quarantined": "✗"}.get(device.state, "?")

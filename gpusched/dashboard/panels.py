"""The panels below or beside the table: rungs, decisions, devices, curves. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.chart import Curve, Points, chart
from gpusched.dashboard.marks import QUIET, clicking, styled
from gpusched.dashboard.model import DeviceView, TrialView, View
from gpusched.text import clean, sentence, show_clock, show_memory, show_metric


def _better(view: View) -> str:
    return "≥" if view.mode == "max" else "≤"


def overview(view: View, width: int, rows: int) -> list[Text]:
    """Compose devices, rungs and the last decisions, the newest first; in little room the rungs are one line."""
    lines: list[Text] = []
    if any(device.utilisation is not None for device in view.devices) and rows >= 12:
        lines += [marks.heading("devices", width), *devices(view, width, rows // 3), Text()]
    if any(rung.count for rung in view.rungs) and rows >= 12:
        lines += [marks.heading("rungs", width), *rungs(view, width, rows // 3), Text()]
    elif any(rung.count for rung in view.rungs):
        lines.append(rungs_line(view))
    notes = styled(" · ".join(view.notes), "cyan")
    if notes and notes.cell_len + len("── decisions ── ──") + 2 > width:
        lines += [marks.heading("decisions", width), notes]
    else:
        lines.append(marks.heading("decisions", width, notes))
    recent = decisions(view, (), 1000)[::-1]
    return [
        *lines,
        *(marks.fit(line.copy(), width) for line in recent[: max(1, rows - len(lines))]),
    ]


# ---------------------------------------------------------------- rungs


def rungs_line(view: View) -> Text:
    """Put all rungs in one line: ``rungs  1: 12 ≥ 0.8712   4: 5 ≥ 0.9401``."""
    line = styled("rungs  ", QUIET)
    for place, rung in enumerate(rung for rung in view.rungs if rung.count):
        line.append("   " if place else "").append(f"{rung.milestone}: ", QUIET)
        line.append(str(rung.count))
        if rung.cutoff is not None:
            line.append(f" {_better(view)} {show_metric(rung.cutoff)}", "cyan")
    return line


def rungs(view: View, width: int, rows: int) -> list[Text]:
    """Draw a ladder, the highest rung on top: how many trials came, how many wait there, and the cut-off."""
    lines = [styled("  step  trials  waiting     kept if", QUIET)]
    most = max((rung.count for rung in view.rungs), default=1)
    for rung in list(reversed(view.rungs))[: max(0, rows - 1)]:
        line = styled(f"{rung.milestone:>6}  ", "bold" if rung.count else QUIET)
        if not rung.count:
            lines.append(line.append(f"{'-':>6}", QUIET))
            continue
        cutoff = "-" if rung.cutoff is None else f"{_better(view)} {show_metric(rung.cutoff)}"
        line.append(f"{rung.count:>6}  ")
        line.append(f"{rung.waiting or '-':>7}  ", "blue" if rung.waiting else QUIET)
        line.append(f"{cutoff:>10}  ", "cyan")
        parts = [(rung.count - rung.waiting, "green"), (rung.waiting, "blue")]
        lines.append(line.append_text(marks.stacked(parts, most, min(24, width - line.cell_len))))
    return lines


# ---------------------------------------------------------------- decisions


def decisions(view: View, history: Sequence[tuple[float, str]], width: int) -> list[Text]:
    """Word the decisions, the newest last, wrapped. ``history``: all since the beginning, where they are known."""
    told = list(history) or [
        (decision.at, sentence(decision.trial, decision.text)) for decision in view.decisions
    ]
    column = max((len(show_clock(at)) for at, _ in told[-1:]), default=0)
    lines = [
        line
        for at, text in told
        for line in _decision(at, _by_name(text, view.devices), column, width)
    ]
    return lines or [styled("none yet", QUIET)]


@lru_cache(maxsize=1 << 14)
def _decision(at: float, text: str, column: int, width: int) -> tuple[Text, ...]:
    """Word one decision; kept, as all but the last few are the same from one frame to the next."""
    text = f"{show_clock(at):>{column}}  {text.replace('->', '→')}"
    lines = [
        Text(part) for part in textwrap.wrap(text, width, subsequent_indent=" " * (column + 2))
    ]
    lines[0].stylize(QUIET, 0, column)
    if (named := _TRIAL.match(text, column + 2)) is not None:
        lines[0].stylize("bold", named.start(), named.end())
        for line in lines:
            clicking(line, f"choose({named[1]})")
    return tuple(lines)


def _by_name(text: str, devices: Sequence[DeviceView]) -> str:
    """Name a GPU as on the screen, once, instead of by its UUID."""
    for device in devices:
        if device.id in text and (name := name_of(device)) != device.id:
            named = text.replace(device.id, name)
            return named.replace(f"quarantined: {name}: ", "quarantined: ")
    return text


# ---------------------------------------------------------------- devices


#: With less room, a device that is out of use shows why instead of its figures.
_ROOM_FOR_BOTH = 130
_HEIGHTS = "▁▂▃▄▅▆▇█"
_GPU = re.compile(r"GPU [0-9+/]+")
_TRIAL = re.compile(r"trial (\d+)")


def name_of(device: DeviceView) -> str:
    """Name a GPU as ``nvidia-smi`` numbers it, rather than by its UUID; anything else by its id."""
    found = _GPU.match(device.label)
    return clean(found[0] if found else device.id, 60)


def trouble(device: DeviceView) -> tuple[str, str]:
    """Return the device's state in a word and the reason without the device's name. A stranger's device is busy."""
    why = device.reason.removeprefix(f"{name_of(device)}: ")
    busy = device.state == "quarantined" and why.startswith(("held by ", "leased by "))
    return ("busy" if busy else device.state), why


def devices(view: View, width: int, rows: int) -> list[Text]:
    """Draw a line a device: its trial, its load now and in the last minute, its memory; or why it is not used."""
    names = min(12, max((len(name_of(device)) for device in view.devices), default=4))
    colours = marks.colours(view)
    lines = [_device(device, width, names, colours) for device in view.devices]
    if len(lines) > rows > 0:
        hidden = len(lines) - rows + 1
        lines = [*lines[: rows - 1], styled(f"and {hidden} more", QUIET)]
    return lines or [styled("none yet", QUIET)]


def _device(device: DeviceView, width: int, names: int, colours: dict[int, str]) -> Text:
    line = styled(name_of(device)[:names].ljust(names) + "  ", "bold")
    state, why = trouble(device)
    if device.state == "held" and device.trial is not None:
        line.append("▪ ", colours.get(device.trial, "")).append(f"trial {device.trial:<6}")
    else:
        line.append(f"  {state:<12}", marks.DEVICE.get(device.state, marks.UNKNOWN)[1])
    reason = why if device.state != "draining" or device.stuck else ""
    reasons = styled("", "yellow")
    for remark in (reason, *(note for note in device.notes if note != device.reason)):
        reasons.append(f"  {remark}" if remark else "")
    if not reason or width >= _ROOM_FOR_BOTH:
        figures = _figures(device, width)
        if device.notes and line.cell_len + figures.cell_len + reasons.cell_len > width:
            figures = _figures(device, 0)  # what is wrong must be seen
        line.append_text(figures)
    return line.append_text(reasons)


def _figures(device: DeviceView, width: int) -> Text:
    """With little room the last minute's load takes the place of the bar; with none, neither is there, nor power."""
    line = Text()
    if device.utilisation is not None:
        if width >= 100 or (width >= 54 and len(device.history) < 2):
            line.append_text(marks.bar(device.utilisation, 8)).append(" ")
        elif width >= 54:
            line.append_text(_load(device.history, 8)).append(" ")
        line.append(f"{device.utilisation:>4.0%}")
    if width >= 100 and device.history:
        line.append("  ").append_text(_load(device.history, 15))
    if device.memory_used_bytes is not None:
        line.append(f"  {show_memory(device.memory_used_bytes, device.memory_total_bytes):>12}")
    if device.temperature_c is not None:
        line.append(
            f"  {device.temperature_c:.0f}°C", "yellow" if device.temperature_c >= 85 else QUIET
        )
    if device.power_w is not None and width:
        line.append(f"  {device.power_w:.0f} W", QUIET)
    return line


def _load(history: Sequence[float | None], width: int) -> Text:
    """Draw the last minute's utilisation, on a scale from nothing to full."""
    apart = -(-len(history) // width)
    recent = history[::-1][::apart][:width][::-1]
    heights = [
        " " if load is None else _HEIGHTS[round(min(1.0, max(0.0, load)) * (len(_HEIGHTS) - 1))]
        for load in recent
    ]
    return styled("".join(heights).rjust(width), marks.CURVE)


# ---------------------------------------------------------------- curves


def curves(
    view: View,
    selected: int | None,
    width: int,
    rows: int,
    timed: Mapping[int, Points] | None = None,
) -> list[Text]:
    """Draw every trial's metric over its steps, or where ``timed`` is given over time; the selected one on top."""
    on_top = view.trial(selected) or view.trial(view.best.trial if view.best else None)
    drawn = sorted(view.trials, key=lambda trial: (trial is on_top, trial.is_live))
    lines = []
    for trial in drawn:
        points = _by_step(trial) if timed is None else timed.get(trial.id, ())
        style = "bold yellow" if trial is on_top else marks.CURVE if trial.is_live else marks.LINE
        lines.append(Curve(points, style))
    title = styled(f"{view.metric} over {'steps' if timed is None else 'time'}", "bold")
    if on_top is not None:
        title.append(f"  trial {on_top.id}", "bold yellow")
        title.append(f" of {len(view.trials)}, now {show_metric(on_top.metric)}", QUIET)
    words = (lambda step: f"step {step:.0f}") if timed is None else show_clock
    return [title, *chart(lines, width, rows - 1, words)]


def _by_step(trial: TrialView) -> Points:
    """Return (step, metric); a view's curve is evenly spaced over the reports."""
    last = max(1, len(trial.curve) - 1)
    first = 1 if len(trial.curve) > 1 else trial.step
    return tuple(
        (first + (trial.step - first) * place / last, value)
        for place, value in enumerate(trial.curve)
    )

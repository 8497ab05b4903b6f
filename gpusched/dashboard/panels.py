"""The panels below or beside the table: rungs, decisions, devices; and the footer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import DeviceView, View
from gpusched.dashboard.ui import UiState
from gpusched.text import clean, sentence, show_clock, show_memory, show_metric


def _better(view: View) -> str:
    return "≥" if view.mode == "max" else "≤"


# ---------------------------------------------------------------- rungs


def rungs_line(view: View) -> Text:
    """Put all rungs in one line: ``rungs  1: 12 ≥ 0.8712   4: 5 ≥ 0.9401``."""
    line = styled("rungs  ", QUIET)
    for place, rung in enumerate(rung for rung in view.rungs if rung.count):
        line.append("   " if place else "").append(f"{rung.milestone}: ", QUIET).append(
            str(rung.count)
        )
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
        line.append(f"{rung.count:>6}  ").append(
            f"{rung.waiting or '-':>7}  ", "blue" if rung.waiting else QUIET
        )
        line.append(f"{cutoff:>10}  ", "cyan")
        parts = [(rung.count - rung.waiting, "green"), (rung.waiting, "blue")]
        lines.append(line.append_text(marks.stacked(parts, most, min(24, width - line.cell_len))))
    return lines


# ---------------------------------------------------------------- decisions


def decisions(view: View, width: int, rows: int) -> list[Text]:
    """Word the last decisions, the newest first."""
    recent = list(reversed(view.decisions))[:rows]
    column = max((len(show_clock(decision.at)) for decision in recent), default=0)
    lines = []
    for decision in recent:
        text = _by_name(decision.text, view.devices).replace("->", "→")
        line = styled(f"{show_clock(decision.at):>{column}}  ", QUIET)
        line.append(sentence(decision.trial, text))
        if decision.trial is not None:
            line.stylize("bold", column + 2, column + 2 + len(f"trial {decision.trial}"))
        lines.append(line)
    return lines or [styled("none yet", QUIET)]


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


# ---------------------------------------------------------------- footer


def remarks(view: View, ui: UiState, width: int, rows: int) -> list[Text]:
    """Word what must not be overlooked: warnings of the daemon, the effect of a key; in little room the newest."""
    told = [(f"! {warning}", "bold yellow") for warning in view.warnings]
    if view.state == "interrupted":
        told.append(("! no daemon runs it; 'gpusched resume' goes on with it", "bold yellow"))
    if ui.note:
        told.append((f"» {clean(ui.note)}", "bold cyan"))
    shown: list[Text] = []
    for text, style in reversed(told):
        left = rows - len(shown)
        parts = textwrap.wrap(text, max(20, width), subsequent_indent="  ")
        if len(parts) > left > 0:
            rest = " ".join([parts[left - 1], *map(str.strip, parts[left:])])
            parts = [*parts[: left - 1], marks.fit(Text(rest), width).plain]
        shown = [styled(part, style) for part in parts[:left]] + shown
    return shown


def footer(view: View, width: int, ui: UiState) -> Text:
    """List the keys, as many as there is room for, the most needed first."""
    leave = ("q", "close" if view.is_over else "detach")
    if ui.help:
        hints = [("any key", "back")]
    elif ui.detail:
        hints = [("↑↓", "other trial"), ("Esc", "back"), leave, ("?", "help")]
    else:
        hints = [("↑↓", "select"), ("Enter", "details"), leave, ("?", "help")]
        hints += [("s", f"sort: {ui.sort}"), ("r", "reverse")]
        hints += [("Tab", "panels" if ui.panel == "both" else f"panel: {ui.panel}")]
    line = Text()
    for key, what in hints:
        if line.cell_len + len(key) + len(what) + 4 > width:
            break
        line.append("   " if line else "").append(key, "bold cyan").append(f" {what}", QUIET)
    return line

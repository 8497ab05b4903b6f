"""The strip of atoms: who holds each, how busy it is, and why one is not used. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.marks import QUIET, fit, styled
from gpusched.dashboard.model import DeviceRow, Standing
from gpusched.text import clean, show_memory

_GPU = re.compile(r"([^/ ]+/)?GPU [0-9+/]+( #[0-9]+)?")
#: Least width of a column of figures.
COLUMN = 58


def name_of(device: DeviceRow) -> str:
    """Name a GPU as ``nvidia-smi`` numbers it, rather than by its UUID; anything else by its id."""
    found = _GPU.match(device.label)
    return clean(found[0] if found else device.id, 60)


def trouble(device: DeviceRow) -> tuple[str, str]:
    """Return the device's state in a word and the reason without the device's name. A stranger's device is busy."""
    names = (name_of(device), name_of(device).partition(" #")[0])
    why = device.reason.removeprefix(f"{names[0]}: ").removeprefix(f"{names[1]}: ")
    busy = device.state == "quarantined" and why.startswith(("held by ", "leased by "))
    return ("busy" if busy else device.state), why


def strip(view: Standing, width: int, rows: int) -> Text:
    """Draw the atoms: a line each with figures, side by side where they fit; else blocks; then what is wrong."""
    if not view.devices:
        return styled("waiting for the devices", QUIET)
    across = max(1, width // COLUMN)
    if any(d.utilisation is not None for d in view.devices):
        lines = [_figures(device, marks.colours(view)) for device in view.devices]
        down = -(-len(lines) // across)
        if down <= rows:
            return _side_by_side(lines, down, width // across)
    drawn = _blocks(view, width)[: max(1, rows - 1)]
    return Text("\n").join([*drawn, *_troubles(view, width)[: max(1, rows - len(drawn))]])


def _side_by_side(lines: Sequence[Text], down: int, width: int) -> Text:
    rows = []
    for row in range(down):
        line = Text()
        for cell in lines[row::down]:
            cell = fit(cell, width - 2)
            line.append_text(cell).append(" " * (width - cell.cell_len))
        rows.append(line)
    return Text("\n").join(rows)


def _figures(device: DeviceRow, colours: dict[int, str]) -> Text:
    """Word one device: its trial, load, memory, temperature and power; or why it is not used."""
    state, why = trouble(device)
    line = styled(f"{name_of(device)[:12]:<8} ", "bold")
    if device.state == "held" and device.trial is not None:
        line.append("▪ ", colours.get(device.trial, "")).append(f"trial {device.trial:<4} ")
    else:
        line.append(f"{state:<12} ", marks.DEVICE.get(device.state, marks.UNKNOWN)[1])
    if why and (device.state != "draining" or device.stuck):
        return line.append(why, "yellow")
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
            style = marks.DEVICE.get(state, marks.UNKNOWN)[1]
            if state == "held" and trial is not None:
                style = f"black on {colours.get(trial, QUIET)}"
            line.append("[", QUIET).append(label, style).append("]", QUIET)
        rows.append(line)
    return rows


def _label(device: DeviceRow) -> str:
    if device.state in ("held", "draining"):
        mark = "~" if device.state == "draining" else ""
        return "?" if device.trial is None else f"{mark}{device.trial}"
    return {"free": "·", "quarantined": "✗"}.get(device.state, "?")


def _troubles(view: Standing, width: int) -> list[Text]:
    """Word quarantined atoms first, then those that somebody does not let go; equal reasons in one line."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for device in sorted(view.devices, key=lambda device: device.state != "quarantined"):
        if device.state == "quarantined" or device.stuck:
            reasons.setdefault((*trouble(device), device.state), []).append(name_of(device))
    lines = []
    for (said, reason, state), names in reasons.items():
        more = f" and {len(names) - 4} more" if names[4:] else ""
        line = styled(" ".join(names[:4]) + more, "bold")
        line.append(f" {said}: {reason}", marks.DEVICE.get(state, marks.UNKNOWN)[1])
        lines.append(fit(line, width))
    return lines

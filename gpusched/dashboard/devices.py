"""The strip of atoms: who holds each, how busy it is, and why some are idle. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from gpusched.dashboard import idle, marks
from gpusched.dashboard.marks import QUIET, fit, styled
from gpusched.dashboard.model import DeviceRow, Standing
from gpusched.text import show_memory

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
    why = [fit(styled(line, "yellow"), width) for line in idle.now(view)][: max(1, rows // 2)]
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
    line = styled(f"{device.name[:12]:<8} ", "bold")
    if device.state == "held" and device.trial is not None:
        line.append("▪ ", colours.get(device.trial, "")).append(f"trial {device.trial:<4} ")
    else:
        line.append(f"{_state(device):<12} ", marks.DEVICE.get(device.state, marks.UNKNOWN)[1])
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

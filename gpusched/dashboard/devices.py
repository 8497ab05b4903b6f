"""Devices and atoms: which trial holds which, how busy it is, and why one is not used. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.marks import QUIET, clicking, styled
from gpusched.dashboard.model import DeviceRow, Standing
from gpusched.text import clean, count, show_memory

LABEL = "atoms  "
#: Columns below which a device out of use shows the reason instead of its figures.
_ROOM_FOR_BOTH = 130
_GPU = re.compile(r"([^/ ]+/)?GPU [0-9+/]+( #[0-9]+)?")


def name_of(device: DeviceRow) -> str:
    """Name a GPU as ``nvidia-smi`` numbers it, rather than by its UUID; anything else by its id."""
    found = _GPU.match(device.label)
    return clean(found[0] if found else device.id, 60)


def gpu_of(device: DeviceRow) -> str:
    """Name the GPU that a device is, or has a share of: as reasons do that hold for all of its shares."""
    return name_of(device).partition(" #")[0]


def trouble(device: DeviceRow) -> tuple[str, str]:
    """Return the device's state in a word and the reason without the device's name. A stranger's device is busy."""
    why = device.reason.removeprefix(f"{name_of(device)}: ").removeprefix(f"{gpu_of(device)}: ")
    busy = device.state == "quarantined" and why.startswith(("held by ", "leased by "))
    return ("busy" if busy else device.state), why


# ---------------------------------------------------------------- a strip of atoms


def strip(view: Standing, width: int, *, rows: int) -> list[Text]:
    """Draw blocks in the atoms' fixed order, named by their trial; below them why an atom cannot be used."""
    label = LABEL if width >= 60 else ""
    if not view.devices:
        return [styled(f"{label}waiting for the devices", QUIET)]
    room = width - len(label)
    lines = list(_blocks(view, room, max(1, rows - 1)))
    counts = _counts(view)
    if len(lines) == 1 and lines[0].cell_len + counts.cell_len + 2 <= room:
        lines[0].append("  ").append_text(counts)
    lines += _troubles(view)[: max(0, rows - len(lines))]
    return [
        styled(" " * len(label) if place else label, QUIET).append_text(line)
        for place, line in enumerate(lines)
    ]


def _blocks(view: Standing, width: int, rows: int) -> Iterator[Text]:
    """Draw the atoms, wrapped over several rows; with too few rows, word them."""
    devices, colours = view.devices, marks.colours(view)
    nodes = [(node, tuple(own)) for node, own in groupby(devices, key=_node)]
    if 1 < len(nodes) <= rows:
        yield from _nodes(nodes, width, colours)
        return
    least = max(len(_label(device)) for device in devices) + 2
    cell = max(least, min(least + 4, width // len(devices)))
    across = width // cell
    if across < 1 or -(-len(devices) // across) > rows:
        held = Counter(device.trial for device in devices if device.state == "held")
        parts = [f"trial {trial} ×{size}" for trial, size in held.most_common() if size > 1]
        if single := list(held.values()).count(1):
            parts.append(f"{count(single, 'trial')} ×1")
        yield Text(", ".join(parts) or "no trial holds an atom")
        return
    for start in range(0, len(devices), across):
        yield _run_of_blocks(devices[start : start + across], cell, colours)


def _run_of_blocks(devices: Sequence[DeviceRow], cell: int, colours: dict[int, str]) -> Text:
    """Draw neighbours that one trial holds as one block."""
    line = Text()
    for _, run in groupby(devices, key=_holding):
        members = list(run)
        line.append_text(block(members[0], cell * len(members), colours))
    return line


def _nodes(
    nodes: Sequence[tuple[str, Sequence[DeviceRow]]], width: int, colours: dict[int, str]
) -> Iterator[Text]:
    """Draw a row of atoms for each node of a cluster, behind its name; more than have room are counted."""
    names = min(16, max(len(node) for node, _ in nodes)) + 2
    most = max(len(own) for _, own in nodes)
    least = max(len(_label(device)) for _, own in nodes for device in own) + 2
    cell = max(least, min(least + 4, (width - names - 4) // most))
    shown = max(1, (width - names - 4) // cell)
    for node, own in nodes:
        line = styled(node[: names - 2].ljust(names), QUIET)
        line.append_text(_run_of_blocks(own[:shown], cell, colours))
        if (left := len(own) - shown) > 0:
            line.append(f" +{left}", QUIET)
        yield line


def _node(device: DeviceRow) -> str:
    """Return the node of a device of a cluster, ``node/device``; nothing for a device of this machine."""
    return device.id.partition("/")[0] if "/" in device.id else ""


def _holding(device: DeviceRow) -> tuple[str, int | None]:
    return device.state, device.trial if device.state in ("held", "draining") else None


def _label(device: DeviceRow) -> str:
    if device.state in ("held", "draining"):
        return "?" if device.trial is None else str(device.trial)
    return {"free": "·", "quarantined": "✗"}.get(device.state, "?")


def block(device: DeviceRow, width: int, colours: dict[int, str]) -> Text:
    """``[  7  ]``; hatched while it drains, crossed out in quarantine. A click chooses the trial."""
    label = _label(device)
    if width >= len(label) + 4:
        label = f" {label} "
    if device.state == "held":
        colour = colours.get(device.trial if device.trial is not None else -1, QUIET)
        line = styled("[", colour).append(label.center(width - 2), f"black on {colour}")
        line.append("]", colour)
    else:
        fill, style = marks.DEVICE.get(device.state, (" ", marks.UNKNOWN[1]))
        # Too narrow for the filling between the brackets: then it takes their place.
        left, right = "[]" if width - 2 > len(label) or not fill.strip() else (fill, fill)
        line = styled(left + label.center(width - 2, fill) + right, style)
    return line if device.trial is None else clicking(line, f"choose({device.trial})")


def _counts(view: Standing) -> Text:
    """``2 held, 1 draining after trial 7``."""
    counts = view.atoms
    if counts.held == counts.total:
        return styled(f"all {counts.total} held" if counts.total > 1 else "held", QUIET)
    line = Text()
    for name in ("held", "free", "draining", "quarantined"):
        if number := getattr(counts, name):
            style = marks.DEVICE.get(name, ("", QUIET))[1]
            line.append(", " if line else "", QUIET).append(f"{number} {name}", style)
            left = {device.trial for device in view.devices if device.state == "draining"}
            if name == "draining" and (known := sorted(t for t in left if t is not None)[:3]):
                line.append(f" after trial {', '.join(map(str, known))}", style)
    return line


def _troubles(view: Standing) -> list[Text]:
    """Word quarantined atoms first, then those that somebody does not let go; equal reasons in one line."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for device in sorted(view.devices, key=lambda device: device.state != "quarantined"):
        if device.state == "quarantined" or device.stuck:
            names = reasons.setdefault((*trouble(device), device.state), [])
            names.append(name_of(device))
    lines = []
    for (said, reason, state), names in reasons.items():
        more = f" and {len(names) - 4} more" if names[4:] else ""
        line = styled(" ".join(names[:4]) + more, "bold")
        lines.append(line.append(f" {said}: {reason}", marks.DEVICE.get(state, marks.UNKNOWN)[1]))
    return lines


# ---------------------------------------------------------------- a line a device


def lines(view: Standing, width: int) -> list[Text]:
    """Draw a line a device: its trial, its load now and in the last minute, its memory; or why it is not used."""
    names = min(12, max((len(name_of(device)) for device in view.devices), default=4))
    colours = marks.colours(view)
    found = [_line(device, width, names, colours) for device in view.devices]
    return found or [styled("none yet", QUIET)]


def _line(device: DeviceRow, width: int, names: int, colours: dict[int, str]) -> Text:
    line = styled(name_of(device)[:names].ljust(names) + "  ", "bold")
    state, why = trouble(device)
    if device.state == "held" and device.trial is not None:
        line.append("▪ ", colours.get(device.trial, "")).append(f"trial {device.trial:<6}")
    else:
        line.append(f"  {state:<12}", marks.DEVICE.get(device.state, marks.UNKNOWN)[1])
    reason = why if device.state != "draining" or device.stuck else ""
    remarks = (reason, *(note for note in device.notes if note != device.reason))
    reasons = styled("".join(f"  {remark}" for remark in remarks if remark), "yellow")
    if not reason or width >= _ROOM_FOR_BOTH:
        figures = _figures(device, width)
        if device.notes and line.cell_len + figures.cell_len + reasons.cell_len > width:
            figures = _figures(device, 0)  # problems come before figures
        line.append_text(figures)
    return line.append_text(reasons)


def _figures(device: DeviceRow, width: int) -> Text:
    """Word the load; with little room the last minute replaces the bar, and width 0 leaves out both, and power."""
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
        style = "yellow" if device.temperature_c >= 85 else QUIET
        line.append(f"  {device.temperature_c:.0f}°C", style)
    if device.power_w is not None and width:
        line.append(f"  {device.power_w:.0f} W", QUIET)
    return line


def _load(history: Sequence[float | None], width: int) -> Text:
    """Draw the last minute's utilisation, on a scale from nothing to full."""
    apart = -(-len(history) // width)
    recent = history[::-1][::apart][:width][::-1]
    return styled(marks.heights(recent, 0.0, 1.0, gap=" ").rjust(width), marks.CURVE)

"""How the rows and columns of a screen are given out: what must be seen first, then the table, then the panels."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from gpusched.dashboard import header, panels, table
from gpusched.dashboard.model import View
from gpusched.dashboard.ui import UiState

#: From this width on, panels stand beside the table; from this height on there are blank lines between things.
WIDE, AIRY = 100, 30
SIDE_SHARE, SIDE_MOST = 0.41, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows of panels are counted without the rule that opens them."""

    width: int
    height: int
    top: tuple[Text, ...]
    bottom: tuple[Text, ...]
    body_rows: int
    #: Width of the column beside the table; 0: everything is stacked.
    side: int
    #: Blank lines between panels.
    gap: int
    table_rows: int
    rungs_rows: int = 0
    decisions_rows: int = 0
    devices_rows: int = 0


def side_margin(width: int) -> int:
    """Blank columns at each edge."""
    return 1 if width >= 60 else 0


def visible_rows(view: View, width: int, height: int, ui: UiState) -> int:
    """How many trials are seen at a time: what a page up or down moves by."""
    return table.visible(plan(view, width - 2 * side_margin(width), height, ui).table_rows)


def blank(rows: int) -> list[Text]:
    return [Text() for _ in range(rows)]


def plan(view: View, width: int, height: int, ui: UiState) -> Plan:
    """``width`` without the margins."""
    gap = int(height >= AIRY)
    head_rows = 4 if height >= 20 else 3 if height >= 14 else 2
    strip_rows = 2 if height < 20 else 4 if height < 36 else 7
    top = header.header(view, width, ui, rows=head_rows)
    top += [*blank(gap), *header.atoms(view, width, rows=strip_rows), *blank(gap)]
    bottom = panels.remarks(view, ui, width, max(1, height // 6))
    bottom += [*blank(gap), panels.footer(view, width, ui)]
    body = max(1, height - len(top) - len(bottom))
    beside = width >= WIDE - 2 and body >= 8
    return Plan(
        width=width,
        height=height,
        top=tuple(top),
        bottom=tuple(bottom),
        body_rows=body,
        side=min(SIDE_MOST, int(width * SIDE_SHARE)) if beside else 0,
        gap=gap if beside else 0,
        **(_beside(view, body, ui, gap) if beside else _stacked(view, body, ui)),
    )


def _stacked(view: View, body: int, ui: UiState) -> dict[str, int]:
    """A third of the body for the panels, more where the table has fewer trials than rows."""
    room = 0 if body < 6 else max(body // 3, body - max(len(view.trials) + 2, 6))
    if ui.panel == "both":
        # The rungs in one line, which needs no rule.
        rungs = int(room >= 4 and any(rung.count for rung in view.rungs))
        decisions = max(0, min(room - rungs - 1, max(5, len(view.decisions))))
        used = rungs + (decisions + 1 if decisions else 0)
        return {
            "table_rows": max(1, body - used - 1),
            "rungs_rows": rungs,
            "decisions_rows": decisions,
        }
    wanted = {"decisions": body, "rungs": len(view.rungs) + 1, "devices": len(view.devices)}
    rows = min(wanted.get(ui.panel, 0), max(0, room - 1))
    if not rows:
        return {"table_rows": max(1, body - 1)}
    return {"table_rows": max(1, body - rows - 2), f"{ui.panel}_rows": rows}


def _beside(view: View, body: int, ui: UiState, gap: int) -> dict[str, int]:
    """The column is as high as the body; decisions get what rungs and devices leave."""
    readable = any(device.utilisation is not None for device in view.devices)
    rungs = len(view.rungs) + 1 if view.rungs and ui.panel in ("both", "rungs") else 0
    devices = len(view.devices) if ui.panel == "devices" or (ui.panel == "both" and readable) else 0
    rungs = min(rungs, max(3, body // 3))
    devices = min(devices, max(2, body // 3))
    left = body - sum(rows + 1 + gap for rows in (rungs, devices) if rows) - 1
    decisions = max(0, left) if ui.panel in ("both", "decisions") else 0
    return {
        "table_rows": body - 1,
        "rungs_rows": rungs,
        "decisions_rows": decisions,
        "devices_rows": devices,
    }

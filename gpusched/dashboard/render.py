"""From a view to a screen: a pure function of the view, the size and what the person has chosen.

    header          what runs, time left, progress, best so far
    atoms           which trial holds which
    table           trials, the best first          | at 100 columns and more, beside it:
    rungs           who came how far                | devices, rungs and decisions,
    decisions       the last ones, in words         | or the selected trial
    footer          remarks and keys

Below 40 columns or 8 rows there is only room for the essentials, and it says so. Every line is cut to the width; the
number of lines never exceeds the height. ``text`` gives the same as plain text, for tests and for files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from gpusched.dashboard import header, marks, panels, table
from gpusched.dashboard.detail import curve, help_lines
from gpusched.dashboard.detail import detail as detail_panel
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import View
from gpusched.dashboard.ui import Detail, UiState, order
from gpusched.text import harmless, show_clock, show_metric

#: From this width on, panels stand beside the table; from this height on there are blank lines between things.
WIDE, AIRY = 100, 30
SIDE_SHARE, SIDE_MOST = 0.41, 64
LEAST_WIDTH, LEAST_HEIGHT = 40, 8
NO_DETAIL = Detail()


def render(
    view: View | None,
    *,
    width: int,
    height: int,
    ui: UiState | None = None,
    detail: Detail = NO_DETAIL,
) -> Group:
    """Return the screen as something rich can print. ``view`` None: no daemon has answered yet."""
    return Group(*compose(view, width=width, height=height, ui=ui, detail=detail))


def text(
    view: View | None,
    width: int,
    height: int,
    ui: UiState | None = None,
    *,
    detail: Detail = NO_DETAIL,
    ascii_only: bool = False,
) -> str:
    """Return the screen as plain text, without colours; lines without trailing blanks."""
    lines = [
        line.plain.rstrip()
        for line in compose(view, width=width, height=height, ui=ui, detail=detail)
    ]
    if ascii_only:
        lines = [marks.to_ascii(line) for line in lines]
    return "\n".join(lines) + "\n"


def compose(
    view: View | None,
    *,
    width: int,
    height: int,
    ui: UiState | None = None,
    detail: Detail = NO_DETAIL,
) -> list[Text]:
    """Compose the lines of the screen: at most ``height``, none wider than ``width``."""
    ui = ui or UiState()
    if view is None:
        lines = [styled("waiting for the daemon ..", QUIET)]
    elif width < LEAST_WIDTH or height < LEAST_HEIGHT:
        lines = _tiny(view, width, height, ui)
    else:
        margin = _side_margin(width)
        frame = _plan(view, width - 2 * margin, height, ui)
        lines = _full(view, frame, ui, detail)
        if margin:
            lines = [Text(" ").append_text(line) for line in lines]
    return [_safe(line, max(0, width)) for line in lines[: max(0, height)]]


def _safe(line: Text, width: int) -> Text:
    """Guard the terminal: views are clean when ``view`` made them, but they come over a socket."""
    plain = harmless(line.plain)
    return marks.fit(line if plain == line.plain else Text(plain), width)


# ---------------------------------------------------------------- putting it together


def _full(view: View, frame: _Plan, ui: UiState, extra: Detail) -> list[Text]:
    side = frame.side if ui.detail or ui.panel != "none" else 0
    if ui.help:
        lines = [frame.top[0], *help_lines(view, ui, frame.width)][: frame.height - 1]
        return [*lines, *_blank(frame.height - 1 - len(lines)), frame.bottom[-1]]
    if side:
        width = frame.width - side - 3
        if ui.detail:
            right = detail_panel(view, view.trial(ui.selected), extra, side, frame.body_rows)
        else:
            right = _panels(view, frame, ui, side)
        body = _columns(_table(view, frame, ui, width), width, right, side, frame.body_rows)
    elif ui.detail:
        trial = view.trial(ui.selected)
        body = detail_panel(view, trial, extra, frame.width, frame.body_rows)
    else:
        body = _table(view, frame, ui, frame.width) + _panels(view, frame, ui, frame.width)
    body = body[: frame.body_rows]
    body += _blank(frame.body_rows - len(body))
    return [*frame.top, *body, *frame.bottom]


def _table(view: View, frame: _Plan, ui: UiState, width: int) -> list[Text]:
    heading, right = table.title(view, ui)
    rows = table.table(view, width, frame.table_rows, ui)
    rows += _below_the_table(view, ui, width, frame.table_rows - len(rows))
    rows += _blank(frame.table_rows - len(rows))
    return [marks.rule(heading, right, width), *rows]


def _below_the_table(view: View, ui: UiState, width: int, rows: int) -> list[Text]:
    """Draw the curve of the selected trial, or of the best, where a few trials leave much room."""
    best = view.best.trial if view.best is not None else None
    trial = view.trial(best if ui.selected is None else ui.selected)
    if rows < 8 or trial is None or len(trial.curve) < 2 or ui.detail:
        return []
    name = styled(f"trial {trial.id}", "bold").append(f" {view.metric}", QUIET)
    return [Text(), marks.rule(name, Text(), width), *curve(trial, width, min(10, rows - 3))]


def _panels(view: View, frame: _Plan, ui: UiState, width: int) -> list[Text]:
    found: list[list[Text]] = []
    if frame.devices_rows:
        rows = panels.devices(view, width, frame.devices_rows)
        found.append([marks.heading("devices", width), *rows])
    if frame.rungs_rows == 1 and ui.panel == "both":
        found.append([panels.rungs_line(view)])
    elif frame.rungs_rows:
        rows = panels.rungs(view, width, frame.rungs_rows)
        found.append([marks.heading("rungs", width), *rows])
    if frame.decisions_rows:
        found.append(_decisions(view, width, frame.decisions_rows))
    lines: list[Text] = []
    for panel in found:
        lines += [*(_blank(frame.gap) if lines else ()), *panel]
    return lines


def _decisions(view: View, width: int, rows: int) -> list[Text]:
    """Put the policy's notes beside the title, or on a line of their own if that is too short."""
    notes = styled(" · ".join(view.notes), "cyan")
    if notes and notes.cell_len + len("── decisions ── ──") + 2 > width and rows > 3:
        title = marks.heading("decisions", width)
        return [title, notes, *panels.decisions(view, width, rows - 1)]
    title = marks.heading("decisions", width, notes)
    return [title, *panels.decisions(view, width, rows)]


def _columns(
    left: Sequence[Text], left_width: int, right: Sequence[Text], right_width: int, rows: int
) -> list[Text]:
    lines = []
    for place in range(rows):
        line = marks.fit(left[place], left_width) if place < len(left) else Text()
        line.append(" " * (left_width - line.cell_len + 3))
        if place < len(right):
            line.append_text(marks.fit(right[place], right_width))
        lines.append(line)
    return lines


def _tiny(view: View, width: int, height: int, ui: UiState) -> list[Text]:
    """Compose the essentials, and how much room the dashboard needs, for windows in which nothing fits."""
    best = view.best
    lines = [
        Text(f"{view.state} {show_clock(header.time_left_s(view, ui))} left", "bold"),
        Text(f"best {show_metric(best.metric)} trial {best.trial}" if best else "no model yet"),
    ]
    if ui.note:
        lines.append(Text(ui.note, "bold cyan"))
    if width < LEAST_WIDTH:
        lines.append(Text("terminal too narrow:", "yellow"))
        lines.append(Text(f"{width} of {LEAST_WIDTH} columns", "yellow"))
    room = height - len(lines) - 1
    for trial in order(view, ui)[: max(0, room)]:
        glyph, style = marks.state_of(trial.state)
        lines.append(
            Text(f"{trial.id:>4} ").append(glyph, style).append(f" {show_metric(trial.metric)}")
        )
    if height < LEAST_HEIGHT and width >= LEAST_WIDTH:
        lines.append(Text(f"terminal too low: {height} of {LEAST_HEIGHT} rows", "yellow"))
    return lines


# ---------------------------------------------------------------- rows and columns given out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
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


def _side_margin(width: int) -> int:
    """Blank columns at each edge."""
    return 1 if width >= 60 else 0


def visible_rows(view: View, width: int, height: int, ui: UiState) -> int:
    """Return how many trials are seen at a time: a page up or down moves by so many."""
    return table.visible(_plan(view, width - 2 * _side_margin(width), height, ui).table_rows)


def _blank(rows: int) -> list[Text]:
    return [Text() for _ in range(rows)]


def _plan(view: View, width: int, height: int, ui: UiState) -> _Plan:
    """``width`` without the margins."""
    gap = int(height >= AIRY)
    head_rows = 4 if height >= 20 else 3 if height >= 14 else 2
    strip_rows = 2 if height < 20 else 4 if height < 36 else 7
    top = header.header(view, width, ui, rows=head_rows)
    top += [*_blank(gap), *header.atoms(view, width, rows=strip_rows), *_blank(gap)]
    bottom = panels.remarks(view, ui, width, max(1, height // 6))
    bottom += [*_blank(gap), panels.footer(view, width, ui)]
    body = max(1, height - len(top) - len(bottom))
    beside = width >= WIDE - 2 and body >= 8
    return _Plan(
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
    """Give a third of the body to the panels, more where the table has fewer trials than rows."""
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
    """Give the column the body's height; decisions get the rows that rungs and devices leave."""
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

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

from rich.console import Group
from rich.text import Text

from gpusched.dashboard import header, marks, panels, table
from gpusched.dashboard.detail import curve, help_lines
from gpusched.dashboard.detail import detail as detail_panel
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import View
from gpusched.dashboard.plan import Plan, blank, plan, side_margin
from gpusched.dashboard.ui import Detail, UiState, order
from gpusched.text import harmless, show_clock, show_metric

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
    """The screen as something rich can print. ``view`` None: nothing has been heard yet."""
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
    """The screen as plain text, without colours; lines without trailing blanks."""
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
    """The lines of the screen: at most ``height``, none wider than ``width``."""
    ui = ui or UiState()
    if view is None:
        lines = [styled("waiting for the daemon ..", QUIET)]
    elif width < LEAST_WIDTH or height < LEAST_HEIGHT:
        lines = _tiny(view, width, height, ui)
    else:
        margin = side_margin(width)
        frame = plan(view, width - 2 * margin, height, ui)
        lines = _full(view, frame, ui, detail)
        if margin:
            lines = [Text(" ").append_text(line) for line in lines]
    return [_safe(line, max(0, width)) for line in lines[: max(0, height)]]


def _safe(line: Text, width: int) -> Text:
    """A last guard: views are clean when ``view`` made them, but they come over a socket."""
    plain = harmless(line.plain)
    return marks.fit(line if plain == line.plain else Text(plain), width)


# ---------------------------------------------------------------- putting it together


def _full(view: View, frame: Plan, ui: UiState, extra: Detail) -> list[Text]:
    side = frame.side if ui.detail or ui.panel != "none" else 0
    if ui.help:
        lines = [frame.top[0], *help_lines(view, ui, frame.width)][: frame.height - 1]
        return [*lines, *blank(frame.height - 1 - len(lines)), frame.bottom[-1]]
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
    body += blank(frame.body_rows - len(body))
    return [*frame.top, *body, *frame.bottom]


def _table(view: View, frame: Plan, ui: UiState, width: int) -> list[Text]:
    heading, right = table.title(view, ui)
    rows = table.table(view, width, frame.table_rows, ui)
    rows += _below_the_table(view, ui, width, frame.table_rows - len(rows))
    rows += blank(frame.table_rows - len(rows))
    return [marks.rule(heading, right, width), *rows]


def _below_the_table(view: View, ui: UiState, width: int, rows: int) -> list[Text]:
    """Where a few trials leave much room: the curve of the selected trial, or of the best."""
    best = view.best.trial if view.best is not None else None
    trial = view.trial(best if ui.selected is None else ui.selected)
    if rows < 8 or trial is None or len(trial.curve) < 2 or ui.detail:
        return []
    name = styled(f"trial {trial.id}", "bold").append(f" {view.metric}", QUIET)
    return [Text(), marks.rule(name, Text(), width), *curve(trial, width, min(10, rows - 3))]


def _panels(view: View, frame: Plan, ui: UiState, width: int) -> list[Text]:
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
        lines += [*(blank(frame.gap) if lines else ()), *panel]
    return lines


def _decisions(view: View, width: int, rows: int) -> list[Text]:
    """The policy's notes beside the title, or on a line of their own if that is too short and there is one to spare."""
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
    """For windows in which nothing fits: the essentials, and how much room the dashboard needs."""
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

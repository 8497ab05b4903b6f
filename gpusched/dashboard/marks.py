"""Glyphs and colours of the states, bars, and curves in braille dots. Pure.

Every state has a glyph *and* a word, and every block of the atoms' strip its trial's number, so no meaning hangs on
colour alone (``NO_COLOR``). Every glyph is one cell wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from rich.text import Text

from gpusched.dashboard.model import Standing
from gpusched.text import show_metric

#: state of a trial -> (glyph, style).
TRIAL = {
    "running": ("●", "green"),
    "starting": ("◐", "cyan"),
    "yielding": ("◌", "yellow"),
    "pending": ("·", "dim"),
    "paused": ("‖", "blue"),
    "completed": ("✓", "green"),
    "stopped": ("■", "dim"),
    "failed": ("✗", "bold red"),
}
#: state of an experiment -> (glyph, style).
EXPERIMENT = {
    "starting": ("◐", "cyan"),
    "running": ("●", "green"),
    "stopping": ("◌", "yellow"),
    "finished": ("✓", "bold green"),
    "interrupted": ("✗", "bold red"),
}

#: state of a device -> style; one that is held has its trial's colour.
DEVICE = {"free": "color(244)", "held": "green", "draining": "yellow", "quarantined": "bold red"}

#: Greys that can be read on black and on white (the terminal's own "bright black" is the background in some themes).
QUIET, LINE = "color(244)", "color(242)"
#: Lines of trials that hold atoms.
CURVE = "color(74)"

#: Backgrounds of the atoms' blocks: quiet, all readable under black text, neighbours unlike.
_PALETTE = (110, 180, 150, 139, 186, 73, 174, 147, 108, 216, 152, 182)


def colours(view: Standing) -> dict[int, str]:
    """Choose a colour for each trial that has atoms, always the same one."""
    trials = {device.trial for device in view.devices if device.trial is not None}
    return {trial: f"color({_PALETTE[trial % len(_PALETTE)]})" for trial in trials}


def styled(text: str, style: str) -> Text:
    """Return a text to append others to; the style does not spread to the others."""
    return Text().append(text, style)


# ---------------------------------------------------------------- small drawings


def bar(share: float, width: int, style: str = "green") -> Text:
    """``━━━━╸────``: how much of something is used up."""
    share = min(1.0, max(0.0, share))
    halves = round(share * width * 2)
    full, half = divmod(halves, 2)
    line = styled("━" * full, style)
    if half:
        line.append("╸", style)
    line.append("─" * (width - full - half), LINE)
    return line


def fit(line: Text, width: int) -> Text:
    """Cut the line to ``width`` cells, with an ellipsis if something is lost."""
    line.no_wrap = True
    if line.cell_len > width:
        line.truncate(max(0, width), overflow="ellipsis")
    return line


def beside(left: Text, right: Text, width: int) -> Text:
    """``left`` and ``right`` at the two ends of a line; the left one gives way."""
    right = fit(right, width)
    room = width - right.cell_len
    left = fit(left, max(0, room - 2))
    left.append(" " * max(0, room - left.cell_len))
    return left.append_text(right)


# ---------------------------------------------------------------- curves, eight dots to a cell

#: y is None where the metric was not a number.
Points = tuple[tuple[float, float | None], ...]

#: Dots of a braille cell by (row, column), as in Unicode.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value, without outliers far away from the middle four fifths."""
    ordered = sorted(values)
    count = len(ordered)
    low, high = ordered[count // 10], ordered[min(count - 1, count - 1 - count // 10)]
    reach = 2.0 * (high - low)
    if reach > 0:
        kept = [value for value in ordered if low - reach <= value <= high + reach]
        low, high = kept[0], kept[-1]
    return low, high


def chart(
    curves: Sequence[tuple[Points, str]], width: int, height: int, good: Sequence[float] = ()
) -> list[Text]:
    """Draw at most ``height`` lines: the range at the left, the first and the last step below.

    A curve is points and a style. Later curves lie above earlier ones. ``good``: values that are to be seen, by default
    all; others may lie outside.
    """
    known = [(x, y) for points, _ in curves for x, y in points if y is not None]
    if not known or height < 2:
        return [styled("no metric has been reported yet", QUIET)][:height]
    low, high = middle(good or [y for _, y in known])
    first, last = min(x for x, _ in known), max(x for x, _ in known)
    top, bottom = show_metric(high), show_metric(low)
    margin = max(len(top), len(bottom))
    across, down = max(1, width - margin - 2), height - 1
    window = (first, last, low, high)
    bits: dict[int, int] = {}
    styles: dict[int, str] = {}
    for points, style in curves:
        for cell, dots in _dots(points, window, across, down):
            bits[cell] = bits.get(cell, 0) | dots
            styles[cell] = style
    lines = []
    for row in range(down):
        mark = top if row == 0 else bottom if row == down - 1 else ""
        line = styled(f"{mark:>{margin}} │", QUIET)
        cells = range(row * across, (row + 1) * across)
        for style, run in groupby(cells, lambda cell: styles.get(cell, "")):
            line.append("".join(chr(0x2800 + bits[c]) if c in bits else " " for c in run), style)
        lines.append(fit(line, width))
    begin, end = f"{first:.0f}", f"{last:.0f}"
    room = max(1, across - len(begin) - len(end))
    ends = styled(f"{'':>{margin + 2}}{begin}{'':>{room}}{end}", QUIET)
    return [*lines, fit(ends, width)]


@lru_cache(maxsize=1024)
def _dots(
    points: Points, window: tuple[float, float, float, float], width: int, height: int
) -> tuple[tuple[int, int], ...]:
    """Return (cell, dots) of one curve. Kept, as most curves of a search stand still from one frame to the next."""
    first, last, low, high = window
    columns, rows = width * 2 - 1, height * 4 - 1
    # Halves keep the difference of huge numbers finite; of the smallest ones nothing is left.
    wide, tall = last / 2 - first / 2, high / 2 - low / 2
    cells: dict[int, int] = {}
    before: tuple[int, int] | None = None
    for x, y in points:
        if y is None:
            before = None
            continue
        across = (x / 2 - first / 2) / wide if wide > 0 else 0.5
        up = (y / 2 - low / 2) / tall if tall > 0 else 0.5
        place = (round(across * columns), round((1 - min(1.5, max(-0.5, up))) * rows))
        for column, row in _line(before or place, place):
            if 0 <= row <= rows:
                cell = row // 4 * width + column // 2
                cells[cell] = cells.get(cell, 0) | _DOTS[row % 4][column % 2]
        before = place
    return tuple(cells.items())


def _line(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    (x, y), (to_x, to_y) = begin, end
    count = max(abs(to_x - x), abs(to_y - y), 1)
    return [
        (x + round((to_x - x) * n / count), y + round((to_y - y) * n / count))
        for n in range(count + 1)
    ]

"""Curves as braille dots, eight to a cell: all of them quietly, the one that matters on top. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from rich.text import Text

from gpusched.dashboard.marks import QUIET, fit, styled
from gpusched.text import show_metric

Points = tuple[tuple[float, float | None], ...]

#: Dots of a braille cell by (row, column), as in Unicode.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart; y is None where the metric was not a number. Later curves lie above earlier ones."""

    points: Points
    style: str


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
    curves: Sequence[Curve], width: int, height: int, x_words: Callable[[float], str] = str
) -> list[Text]:
    """Draw at most ``height`` lines: the range at the left, ``x_words`` of both ends below."""
    known = [(x, y) for curve in curves for x, y in curve.points if y is not None]
    if not known or height < 2:
        return [styled("no metric has been reported yet", QUIET)][:height]
    low, high = middle([y for _, y in known])
    first, last = min(x for x, _ in known), max(x for x, _ in known)
    top, bottom = show_metric(high), show_metric(low)
    margin = max(len(top), len(bottom))
    across, down = max(1, width - margin - 2), height - 1
    window = (first, last, low, high)
    bits: dict[int, int] = {}
    styles: dict[int, str] = {}
    for curve in curves:
        for cell, dots in _dots(curve.points, window, across, down):
            bits[cell] = bits.get(cell, 0) | dots
            styles[cell] = curve.style
    lines = []
    for row in range(down):
        mark = top if row == 0 else bottom if row == down - 1 else ""
        line = styled(f"{mark:>{margin}} │", QUIET)
        cells = range(row * across, (row + 1) * across)
        for style, run in groupby(cells, lambda cell: styles.get(cell, "")):
            line.append("".join(chr(0x2800 + bits[c]) if c in bits else " " for c in run), style)
        lines.append(fit(line, width))
    begin, end = x_words(first), x_words(last)
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

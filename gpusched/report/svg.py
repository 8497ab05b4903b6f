"""Small charts as SVG text: lines with axes, and rows of spans. No library, no script, no outside resource."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpusched.dashboard.model import thinned

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 64, 16, 10, 34
_PALETTE_TURN = 137.508
POINTS_MAX = 200


@dataclass(frozen=True, slots=True)
class Line:
    """``title`` is shown when the mouse rests on it."""

    points: Sequence[tuple[float, float]]
    colour: str
    title: str
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A span in row ``row``."""

    row: int
    begin: float
    end: float
    kind: str
    colour: str
    title: str
    text: str = ""


def colour(number: int) -> str:
    """Choose one of many colours that differ from their neighbours, readable on light and dark."""
    return f"hsl({number * _PALETTE_TURN % 360:.0f} 60% 48%)"


def lines(chart: Sequence[Line], *, x_label: str, y_label: str, height: int = 340) -> str:
    """Draw a chart of lines; the y axis spans most of the points, so that a curve that runs away hides nothing."""
    points = [point for line in chart for point in line.points]
    if not points:
        return '<p class="quiet">nothing to draw yet</p>'
    x = _Scale(0.0, max(max(p[0] for p in points), 1e-9), LEFT, WIDTH - RIGHT)
    low, high = _middle([p[1] for p in points])
    y = _Scale(low, high, height - BOTTOM, TOP)
    out = [_open(height), *_grid(x, y, height, x_label, y_label)]
    out.append(
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{height - TOP - BOTTOM}"/></clipPath><g clip-path="url(#plot)">'
    )
    for line in sorted(chart, key=lambda one: one.bold):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in thinned(line.points, POINTS_MAX))
        width = 2.5 if line.bold else 1.2
        style = f'stroke="{line.colour}" stroke-width="{width}"'
        title = f"<title>{escape(line.title)}</title>"
        if len(line.points) == 1:
            (a, b) = line.points[0]
            out.append(
                f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5" fill="{line.colour}">{title}</circle>'
            )
        else:
            out.append(f'<polyline points="{path}" fill="none" {style}>{title}</polyline>')
    return "".join([*out, "</g></svg>"])


def rows(names: Sequence[str], bars: Sequence[Bar], *, until: float, x_label: str) -> str:
    """Draw a row a device, its spans in it."""
    if not names:
        return '<p class="quiet">no device yet</p>'
    deep = 22 if len(names) <= 24 else 8
    height = TOP + BOTTOM + deep * len(names)
    x = _Scale(0.0, max(until, 1e-9), LEFT + 40, WIDTH - RIGHT)
    out = [_open(height), *_x_axis(x, height, x_label)]
    for place, name in enumerate(names):
        if deep > 10:
            label = name if len(name) <= 15 else f"{name[:14]}…"
            middle = TOP + place * deep + deep * 0.7
            out.append(
                f'<text x="{LEFT + 34}" y="{middle:.1f}" text-anchor="end">{escape(label)}'
                f"<title>{escape(name)}</title></text>"
            )
    for bar in bars:
        left, right = x(bar.begin), x(bar.end)
        top = TOP + bar.row * deep + 1
        wide = max(right - left, 0.6)
        out.append(
            f'<rect class="{bar.kind}" x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{deep - 2}" '
            f'fill="{bar.colour}"><title>{escape(bar.title)}</title></rect>'
        )
        if bar.text and deep > 10 and wide > 8 * len(bar.text) + 4:
            out.append(
                f'<text class="on" x="{left + wide / 2:.1f}" y="{top + deep * 0.64:.1f}" '
                f'text-anchor="middle">{escape(bar.text)}</text>'
            )
    return "".join([*out, "</svg>"])


class _Scale:
    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self._begin + min(max(share, -1.0), 2.0) * (self._end - self._begin)

    def ticks(self, most: int = 7) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step - 1e-9)
        found = [n * step for n in range(first, first + most + 2)]
        return [value for value in found if value <= self.high + 1e-9 * step]


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value, without outliers far away from the middle four fifths."""
    ordered = sorted(values)
    count = len(ordered)
    low, high = ordered[count // 10], ordered[min(count - 1, count - 1 - count // 10)]
    reach = 2.0 * (high - low)
    if reach > 0:
        kept = [value for value in ordered if low - reach <= value <= high + reach]
        low, high = kept[0], kept[-1]
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _open(height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'


def _x_axis(x: _Scale, height: int, label: str) -> list[str]:
    floor = height - BOTTOM
    out = []
    for value in x.ticks(10):
        at = x(value)
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>')
        out.append(f'<text x="{at:.1f}" y="{floor + 14}" text-anchor="middle">{value:.6g}</text>')
    out.append(
        f'<text x="{WIDTH - RIGHT}" y="{height - 4}" text-anchor="end">{escape(label)}</text>'
    )
    return out


def _grid(x: _Scale, y: _Scale, height: int, x_label: str, y_label: str) -> list[str]:
    out = _x_axis(x, height, x_label)
    for value in y.ticks():
        at = y(value)
        out.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        out.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.5g}</text>')
    out.append(f'<text x="{LEFT + 4}" y="{TOP + 10}">{escape(y_label)}</text>')
    return out

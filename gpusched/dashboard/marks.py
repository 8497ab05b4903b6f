"""Glyphs, colours and small drawings: what each state looks like, sparklines and bars.

Every state has a glyph *and* a word, and every block of the atoms' strip its trial's number, so nothing hangs on colour
alone (``NO_COLOR``). Every glyph is one cell wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rich.style import Style
from rich.text import Text

from gpusched.dashboard.model import Standing, thinned

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
#: A state that this version does not know.
UNKNOWN = ("?", "magenta")

#: state of an experiment -> (glyph, style).
EXPERIMENT = {
    "starting": ("◐", "cyan"),
    "running": ("●", "green"),
    "stopping": ("◌", "yellow"),
    "finished": ("✓", "bold green"),
    "interrupted": ("✗", "bold red"),
}

#: state of a device that nobody holds -> (what fills its block, style).
DEVICE = {
    "free": (" ", "color(244)"),
    "draining": ("░", "yellow"),
    "quarantined": ("×", "bold red"),
}

#: Explanations, and lines between panels: greys that can be read on black and on white (the
#: terminal's own "bright black" is the background colour in some themes).
QUIET, LINE = "color(244)", "color(242)"
#: Rows of trials that hold no atoms; sparklines of those that do and those that do not.
RESTING, CURVE, CURVE_RESTING = "color(245)", "color(74)", "color(67)"

#: Backgrounds of the atoms' blocks: quiet, all readable under black text, neighbours unlike.
_PALETTE = (110, 180, 150, 139, 186, 73, 174, 147, 108, 216, 152, 182)


def colours(view: Standing) -> dict[int, str]:
    """Choose a colour for each trial that has atoms: always the same one unless an older trial has it."""
    found: dict[int, str] = {}
    taken: set[int] = set()
    for trial in sorted({device.trial for device in view.devices if device.trial is not None}):
        place = trial % len(_PALETTE)
        while place in taken and len(taken) < len(_PALETTE):
            place = (place + 1) % len(_PALETTE)
        taken.add(place)
        found[trial] = f"color({_PALETTE[place]})"
    return found


def styled(text: str, style: str) -> Text:
    """Return a text to append others to; its style does not spread to them."""
    return Text().append(text, style)


def clicking(text: Text, action: str) -> Text:
    """Have a click on the text do an action, of the screen where no other is named."""
    text.stylize(_click(action if "." in action.partition("(")[0] else f"screen.{action}"))
    return text


@lru_cache(maxsize=4096)
def _click(action: str) -> Style:
    return Style(meta={"@click": action})


def state_of(state: str) -> tuple[str, str]:
    return TRIAL.get(state, UNKNOWN)


# ---------------------------------------------------------------- small drawings

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(curve: Sequence[float | None], width: int) -> str:
    """Draw the shape of a curve, scaled to its own range; × where the metric was not a number."""
    points = thinned(curve, width) if width > 0 else []
    known = [point for point in points if point is not None]
    return heights(points, min(known, default=0.0), max(known, default=0.0), gap="×")


def heights(values: Sequence[float | None], low: float, high: float, *, gap: str) -> str:
    """Draw a block for each value, as high as the value lies between ``low`` and ``high``; ``gap`` for none."""
    # A flat curve is drawn in the middle; halves keep the difference of huge numbers finite.
    span = high / 2 - low / 2

    def block(value: float | None) -> str:
        if value is None:
            return gap
        share = (value / 2 - low / 2) / span if span > 0 else 0.4
        return _BLOCKS[min(7, int(min(1.0, max(0.0, share)) * 8))]

    return "".join(map(block, values))


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


def stacked(parts: Sequence[tuple[int, str]], most: int, width: int) -> Text:
    """Counts as one bar of several colours; a count that is not 0 is always seen. ``most`` fills the width."""
    line = Text()
    for number, style in parts:
        length = min(width, max(1, round(number / most * width))) if number > 0 else 0
        line.append("━" * length, style)
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


def rule(title: Text, right: Text, width: int) -> Text:
    """``── title ─────── right ──``: opens a panel."""
    end = styled(" ", LINE).append_text(right).append(" ──", LINE) if right else styled("──", LINE)
    start = styled("── ", LINE).append_text(title).append(" ")
    if start.cell_len + end.cell_len > width:
        end = Text()
    start = fit(start, width)
    start.append("─" * max(0, width - start.cell_len - end.cell_len), LINE)
    return start.append_text(end)


def heading(title: str, width: int, right: Text | None = None) -> Text:
    """Draw a rule with a plain title."""
    return rule(styled(title, "bold"), right or Text(), width)

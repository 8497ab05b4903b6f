"""Widgets of the dashboard: lines that scroll, are searched and clicked; and questions to the person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from gpusched.dashboard.marks import clicking, styled
from gpusched.text import harmless

Line = Text | str
#: Composes lines for a widget of this width and height.
Compose = Callable[[int, int], Sequence[Line]]


class LinesView(ScrollView, can_focus=True):
    """Lines of text that scroll below the first ``head``. Only changed lines are painted again.

    ``is_fitted``: as high as there are lines. ``is_wide``: scroll sideways, too. ``follows``: stay at the end while
    lines are added, unless the person has scrolled away from there.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down"),
        Binding("k", "scroll_up"),
        Binding("g", "scroll_home"),
        Binding("G", "scroll_end"),
    ]

    def __init__(
        self,
        composed: Compose,
        *,
        id: str,
        head: int = 0,
        is_fitted: bool = False,
        is_wide: bool = False,
        follows: bool = False,
    ) -> None:
        super().__init__(id=id, can_focus=not is_fitted)
        self._composed, self._head = composed, head
        self._is_fitted, self._is_wide, self._follows = is_fitted, is_wide, follows
        self._base = Style()
        self._is_at_end = True
        self._lines: Sequence[Line] = ()
        self._needle = ""
        self._found = -1

    @property
    def room(self) -> Size:
        """Columns and rows for lines, without the scroll bars."""
        return self.scrollable_content_region.size

    def repaint(self) -> None:
        """Compose the lines anew, and show the changed ones."""
        width, height = self.room
        if self._is_fitted:  # no room of its own while it has no lines
            width = self.container_size.width
        if not width:
            return
        # Looking the style up for each line would cost as much as drawing the line.
        self._base = self.rich_style
        before, self._lines = self._lines, self._composed(width, height)
        if self._lines is before:
            return
        # Another width is another layout of the whole screen: only what scrolls sideways has one.
        widest = max(map(len, self._lines), default=0) if self._is_wide else 0
        size = Size(widest, len(self._lines))
        if size != self.virtual_size:
            self.virtual_size = size
            if self._is_fitted:
                self.styles.height = size.height
            if self._follows and self._is_at_end:
                self.call_after_refresh(self.scroll_end, animate=False, x_axis=False)
        for row in range(self.room.height):
            place = self.place_of(row)
            if before[place : place + 1] != self._lines[place : place + 1]:
                self.refresh_line(row + self.scroll_offset.y)

    def place_of(self, row: int) -> int:
        """Return the place among the lines of a row of the widget."""
        return row if row < self._head else row + self.scroll_offset.y

    def on_resize(self) -> None:
        self.repaint()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._is_at_end = self.is_vertical_scroll_end

    def render_line(self, y: int) -> Strip:
        width, place = self.room.width, self.place_of(y)
        if place >= len(self._lines):
            return Strip.blank(width, self._base)
        line = self._lines[place]
        text = Text(line) if isinstance(line, str) else line
        if text.plain != (plain := harmless(text.plain)):
            text = Text(plain)
        if self._needle:
            text = text.copy()
            text.highlight_words([self._needle], "reverse", case_sensitive=False)
            text.stylize("bold" if place == self._found else "")
        text.end = ""
        strip = Strip(text.render(self.app.console), text.cell_len)
        return strip.crop_extend(self.scroll_offset.x, self.scroll_offset.x + width, self._base)

    def search(self, needle: str, *, back: bool = False) -> str:
        """Go to the next line that has ``needle``, round and round; return what was found, in words."""
        is_new, self._needle = needle != self._needle, needle
        found = [p for p, line in enumerate(self._lines) if needle.lower() in str(line).lower()]
        self.refresh()
        if not needle or not found:
            return f"no line has {needle!r}" if needle else ""
        if is_new:  # the first; where the end is followed, the newest
            self._found = len(self._lines) if self._follows else -1
            back = back or self._follows
        later = [place for place in found if place > self._found]
        earlier = [place for place in found if place < self._found]
        self._found = (earlier or found)[-1] if back else (later or found)[0]
        self.bring_in_sight(self._found, self.room.height // 2)
        return f"{needle!r}: {found.index(self._found) + 1} of {len(found)} lines"

    def bring_in_sight(self, place: int, margin: int = 0) -> None:
        """Scroll no more than it takes to show this line, ``margin`` lines from the edge."""
        first = self._head + self.scroll_offset.y
        last = self.room.height - 1 + self.scroll_offset.y
        by = min(0, place - margin - first) or max(0, place + margin - last)
        self.scroll_relative(y=by, animate=False, immediate=True)


class YesOrNo(ModalScreen[bool]):
    """A question that is answered by yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)"),
        Binding("n,escape,q", "dismiss(False)"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yes = clicking(styled(" y yes ", "bold cyan"), "dismiss(True)")
        no = clicking(styled(" n no ", "bold cyan"), "dismiss(False)")
        yield Static(Text.assemble(harmless(self._question), "\n\n", yes, "   ", no))


class Prompt(ModalScreen[str | None]):
    """A line to type; ``on_change`` is told each letter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)")]

    def __init__(self, label: str, on_change: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self._label, self._on_change = label, on_change

    def compose(self) -> ComposeResult:
        yield Input(placeholder=self._label, compact=True)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._on_change is not None:
            self._on_change(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

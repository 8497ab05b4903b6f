"""Widgets of the dashboard: lines that scroll, are searched and clicked; and questions to the person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from gpusched.text import harmless

Line = Text | str


class Lines(ScrollView, can_focus=True):
    """Lines of text below a head that stays. Only what has changed is painted again.

    ``follows``: stay at the end while it grows, unless somebody has scrolled away from there.
    ``is_wide``: scroll sideways, too.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down"),
        Binding("k", "scroll_up"),
        Binding("g", "scroll_home"),
        Binding("G", "scroll_end"),
    ]

    class Clicked(Message):
        """A line was clicked."""

        def __init__(self, source: Lines, place: int) -> None:
            super().__init__()
            self.source, self.place = source, place

    class Resized(Message):
        """The widget has another size."""

        def __init__(self, source: Lines) -> None:
            super().__init__()
            self.source = source

    def __init__(
        self, *, id: str, can_focus: bool = True, follows: bool = False, is_wide: bool = False
    ) -> None:
        super().__init__(id=id, can_focus=can_focus)
        self._follows, self._is_wide = follows, is_wide
        self._base = Style()
        self._is_at_end = True
        self._head: Sequence[Line] = ()
        self._lines: Sequence[Line] = ()
        self._needle = ""
        self._found = -1

    @property
    def lines(self) -> Sequence[Line]:
        return self._lines

    @property
    def room(self) -> Size:
        """Columns and rows for lines and head, without the scroll bars."""
        return self.scrollable_content_region.size

    def show(self, lines: Sequence[Line], head: Sequence[Line] = ()) -> None:
        """Show these lines from now on."""
        before = [*self._head, *self._lines]
        whole = len(head) != len(self._head)
        self._head, self._lines, self._base = head, lines, self.rich_style
        after = [*head, *lines]
        # Another width is another layout of the whole screen: only what scrolls sideways has one.
        widest = max(map(len, after), default=0) if self._is_wide else 0
        size = Size(widest, len(after))
        if size != self.virtual_size:
            self.virtual_size = size
            if self._follows and self._is_at_end:
                self.call_after_refresh(self.scroll_end, animate=False, x_axis=False)
        if whole:
            self.refresh()
            return
        for row in range(self.room.height):
            place = row if row < len(head) else row + self.scroll_offset.y
            if before[place : place + 1] != after[place : place + 1]:
                self.refresh_line(row + self.scroll_offset.y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._is_at_end = self.is_vertical_scroll_end

    def render_line(self, y: int) -> Strip:
        width, (scroll_x, scroll_y) = self.room.width, self.scroll_offset
        if y < len(self._head):
            line, place, scroll_x = self._head[y], -1, 0
        elif 0 <= (place := y - len(self._head) + scroll_y) < len(self._lines):
            line = self._lines[place]
        else:
            return Strip.blank(width, self._base)
        text = Text(line) if isinstance(line, str) else line
        if text.plain != (plain := harmless(text.plain)):
            text = Text(plain)
        if self._needle or place == self._found:
            text = text.copy()
            text.highlight_words([self._needle], "reverse", case_sensitive=False)
            text.stylize("bold" if place == self._found else "")
        text.end = ""
        strip = Strip(text.render(self.app.console), text.cell_len)
        return strip.crop_extend(scroll_x, scroll_x + width, self._base)

    def search(self, needle: str, *, back: bool = False) -> str:
        """Go to the next line that has ``needle``, round and round; return what was found, in words."""
        fresh, self._needle = needle != self._needle, needle
        found = [p for p, line in enumerate(self._lines) if needle.lower() in str(line).lower()]
        self.refresh()
        if not needle or not found:
            self._found = -1
            return f"no line has {needle!r}" if needle else ""
        if fresh:
            # What is being looked at comes first; where the end is followed, the newest.
            self._found = len(self._lines) if self._follows else -1
            back = back or self._follows
        later = [place for place in found if place > self._found]
        earlier = [place for place in found if place < self._found]
        self._found = (earlier or found)[-1] if back else (later or found)[0]
        self.scroll_to(y=max(0, self._found - self.room.height // 2), animate=False, immediate=True)
        return f"{needle!r}: {found.index(self._found) + 1} of {len(found)} lines"

    def on_resize(self) -> None:
        self.post_message(self.Resized(self))

    def on_click(self, event: events.Click) -> None:
        place = event.y - len(self._head) + self.scroll_offset.y
        if event.y >= len(self._head) and 0 <= place < len(self._lines):
            self.post_message(self.Clicked(self, place))


class Question(ModalScreen[bool]):
    """A question that is answered by yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)"),
        Binding("n,escape,q", "dismiss(False)"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yes, no = Text(" y yes ", "bold cyan"), Text(" n no ", "bold cyan")
        yes.stylize(Style(meta={"@click": "screen.dismiss(True)"}))
        no.stylize(Style(meta={"@click": "screen.dismiss(False)"}))
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

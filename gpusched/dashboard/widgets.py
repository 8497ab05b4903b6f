"""Two questions of the dashboard: yes or no, and a line of text."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Label


class YesOrNo(ModalScreen[bool]):
    """A question; y or Enter agrees, anything that closes it does not."""

    CSS = """
    YesOrNo { align: center middle; }
    YesOrNo Label { max-width: 90%; border: round $primary; padding: 0 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)"),
        Binding("n,escape,q", "dismiss(False)"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Label(f"{self._question}  y / n", markup=False)


class Prompt(ModalScreen[str | None]):
    """A line of text; None where the person leaves with Escape."""

    CSS = """
    Prompt { align: center bottom; }
    Prompt Label { width: 100%; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)")]

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def compose(self) -> ComposeResult:
        yield Label(self._label, markup=False)
        yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

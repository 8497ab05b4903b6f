"""The terminal: the alternate screen, painting only what has changed, and keys one by one.

Rules:

* Whatever happens inside ``with Screen(..)``, the terminal is afterwards as it was before.
* A frame is written in one go and only where lines differ from the frame before, so that nothing flickers and little
  travels over a slow connection. ``forget`` makes the next frame a whole one (after a resize, or when others wrote).
* A terminal that has gone away raises ``TerminalGone``, once, from whatever was tried.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from gpusched.dashboard.marks import to_ascii

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
#: Synchronised output: terminals that know it show a frame at once, others ignore it.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"

_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


class TerminalGone(Exception):
    """The other end of the terminal is gone."""


def is_possible(out: TextIO | None = None) -> bool:
    """Tell whether ``out`` is a terminal that can show a screen, and we are not in its background."""
    out = sys.stdout if out is None else out
    if os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return False
    try:
        descriptor = out.fileno()
        return os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except (OSError, ValueError):
        return False


class Screen:
    """The terminal behind ``out``, with the keyboard behind ``keyboard`` (None: no keys)."""

    def __init__(self, out: TextIO, keyboard: int | None = None) -> None:
        self._out = out
        self.keyboard = keyboard
        self._settings: list[Any] | None = None
        self._entered = False
        self._painted: list[str] = []
        # Looks at NO_COLOR, FORCE_COLOR, COLORTERM and TERM.
        self._console = Console(file=out, force_terminal=True, highlight=False, emoji=False)
        self._colours = _SYSTEMS.get(self._console.color_system or "")
        encoding = (getattr(out, "encoding", None) or "ascii").lower()
        self._ascii = not encoding.replace("_", "-").startswith("utf")

    # ------------------------------------------------------------ in and out

    def __enter__(self) -> Screen:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal over; also again, after another program has had it."""
        if self.keyboard is not None:
            if self._settings is None:
                self._settings = termios.tcgetattr(self.keyboard)
            tty.setcbreak(self.keyboard, termios.TCSADRAIN)
        self.forget()
        self._entered = True
        self._write(_ENTER)

    def leave(self) -> None:
        """Give the terminal back; harmless twice, and when the terminal is gone."""
        if not self._entered:
            return
        self._entered = False
        with contextlib.suppress(TerminalGone):
            self._write(_LEAVE)
        if self.keyboard is not None and self._settings is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self._settings)
            self._settings = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows; 80 by 24 where the terminal does not say."""
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def keys(self) -> bytes:
        """Read what was typed; for when the keyboard is readable."""
        if self.keyboard is None:
            return b""
        try:
            data = os.read(self.keyboard, 1024)
        except OSError as error:
            raise TerminalGone from error
        if not data:
            raise TerminalGone
        return data

    # ------------------------------------------------------------ painting

    def forget(self) -> None:
        """Paint the next frame whole."""
        self._painted = []

    def paint(self, lines: Sequence[Text], columns: int, rows: int) -> None:
        """Show these lines, and nothing below them. None may be wider than ``columns``."""
        # Behind a full line the cursor stands on its last cell, which "erase to the end" would take with it.
        frame = [
            self._ansi(line) + ("" if line.cell_len >= columns else "\x1b[0m\x1b[K")
            for line in lines[:rows]
        ]
        frame += ["\x1b[K"] * (rows - len(frame))
        whole = len(frame) != len(self._painted)
        parts = ["\x1b[0m\x1b[2J"] if whole else []
        for row, line in enumerate(frame):
            if whole or line != self._painted[row]:
                parts.append(f"\x1b[{row + 1};1H{line}\x1b[0m")
        self._painted = frame
        if parts:
            self._write(_BEGIN + "".join(parts) + _END)

    def _ansi(self, line: Text) -> str:
        parts = []
        for segment in line.render(self._console):
            text = to_ascii(segment.text) if self._ascii else segment.text
            style = segment.style
            if style is None or self._colours is None:
                parts.append(text)
            else:
                style = style.without_color if self._console.no_color else style
                parts.append(style.render(text, color_system=self._colours))
        return "".join(parts)

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError) as error:
            raise TerminalGone from error


# ---------------------------------------------------------------- the keyboard

_NAMED = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[5~": "pgup",
    b"\x1b[6~": "pgdn",
    b"\x1b[7~": "home",
    b"\x1b[8~": "end",
    b"\x1b[Z": "backtab",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "left",
    b"\x08": "left",
    b" ": "pgdn",
    b"\x06": "pgdn",
    b"\x02": "pgup",
}
#: One key: a CSI or SS3 sequence, Alt with a key, a character of UTF-8, or a single byte.
_KEY = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b[^\[O\x1b]|[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...|[^\x1b]",
    re.DOTALL,
)


def decode_keys(data: bytes) -> tuple[list[str], bytes]:
    """Return the names of the keys in ``data``, as ``ui.press`` knows them, and what may be the beginning of one more.

    A lone escape byte is such a beginning: if nothing follows soon, it was the escape key (``finish_keys``).
    """
    keys: list[str] = []
    while data:
        match = _KEY.match(data)
        if match is None:
            # Two escapes: the first was the key. Anything else may yet become a sequence.
            if data[1:2] == b"\x1b":
                keys.append("esc")
                data = data[1:]
                continue
            return keys, data
        name = _name(match.group())
        if name:
            keys.append(name)
        data = data[match.end() :]
    return keys, b""


def finish_keys(rest: bytes) -> list[str]:
    """Return the key that an unfinished beginning was, when nothing followed."""
    return ["esc"] if rest == b"\x1b" else []


def _name(key: bytes) -> str:
    if key.startswith(b"\x1bO"):
        key = b"\x1b[" + key[2:]
    if key in _NAMED:
        return _NAMED[key]
    text = key.decode("utf-8", "ignore")
    return text if text.isprintable() else ""

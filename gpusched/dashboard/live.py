"""The live dashboard: views in, keys in, screens out, until the experiment is over or the person leaves.

    feed (thread) ──views──▶ mailbox ──▶ loop ──▶ compose ──▶ screen
    loupe (thread) ─details─▶    ▲        ▲
    signals ─────────────────────┘     keyboard

The loop waits for the mailbox and the keyboard, never for the daemon. Signal handlers only take a note and wake it.
Ctrl-C is the caller's: ``on_interrupt`` does what it means and says so in a sentence; without one it detaches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from gpusched.dashboard import lines
from gpusched.dashboard.feed import Explain, Feed, Frames, Loupe, Mailbox
from gpusched.dashboard.model import View
from gpusched.dashboard.render import compose, visible_rows
from gpusched.dashboard.screen import (
    Screen,
    TerminalGone,
    decode_keys,
    finish_keys,
    is_possible,
)
from gpusched.dashboard.ui import Detail, UiState, order, press
from gpusched.errors import GpuschedError

Why = Literal["over", "detached", "lost", "terminated"]

TICK_S = 0.5
#: A lone escape byte is the escape key if nothing follows for this long.
ESCAPE_S = 0.05
#: A daemon sends twice a second; after this long without a word it is said to be away.
AWAY_AFTER_S = 2.5
NOTE_S = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """The end of watching. ``lost``: no daemon runs the experiment any more, and it is not over."""

    view: View | None
    why: Why


def watch(
    frames: Frames,
    *,
    folder: Path | None = None,
    on_interrupt: Callable[[], str] | None = None,
    explain: Explain | None = None,
    stay: bool | None = None,
    out: TextIO | None = None,
) -> Watched:
    """Show an experiment until it is over, its daemon is lost for good, or the person detaches (q).

    ``frames``: gives out views, see ``feed.Frames``. ``folder``: the experiment's, for log tails. ``explain``: a
    trial's story. ``stay``: remain when it is over (default: where Ctrl-C only detaches). Without a terminal
    that can show a screen (``TERM=dumb``, a pipe), plain lines are printed instead. For the main thread; the terminal
    and the signal handlers are afterwards as before. Raises what ``frames`` raises.
    """
    out = sys.stdout if out is None else out
    stay = on_interrupt is None if stay is None else stay
    with contextlib.ExitStack() as stack:
        screen = None
        if is_possible(out):
            screen = Screen(out, stack.enter_context(_keyboard()))
        loop = _Loop(screen, frames, folder, on_interrupt, explain, stay, out)
        return loop.run()


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Standard input if it is a terminal, else the terminal itself, else none."""
    if sys.stdin is not None and sys.stdin.isatty():
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Loop:
    """One call of ``watch``."""

    def __init__(
        self,
        screen: Screen | None,
        frames: Frames,
        folder: Path | None,
        on_interrupt: Callable[[], str] | None,
        explain: Explain | None,
        stay: bool,
        out: TextIO,
    ) -> None:
        self._screen = screen
        self._on_interrupt = on_interrupt
        self._stay = stay
        self._out = out
        self._mailbox = Mailbox()
        self._feed = Feed(frames, self._mailbox)
        self._loupe = Loupe(self._mailbox, folder, explain)
        self._signals: deque[int] = deque()
        self._view: View | None = None
        self._heard_at = time.monotonic()
        interrupt = (
            "stop in good order; again: terminate; a third time: kill" if on_interrupt else "detach"
        )
        self._ui = UiState(interrupt=interrupt)
        self._note_until = 0.0
        self._detail: tuple[int, Detail] = (-1, Detail())
        self._typed = b""
        self._why: Why | None = None
        self._dirty = True
        self._painted_at = 0.0

    # ------------------------------------------------------------ the loop

    def run(self) -> Watched:
        with contextlib.ExitStack() as stack:
            stack.callback(self._mailbox.close)
            stack.callback(self._loupe.stop)
            stack.callback(self._feed.stop)
            stack.enter_context(self._signal_handlers())
            if self._screen is not None:
                stack.enter_context(self._screen)
            self._feed.start()
            self._loupe.start()
            try:
                while self._why is None:
                    if self._dirty:
                        self._paint()
                    self._wait()
            except TerminalGone:
                self._why = "terminated"
        return Watched(self._view, self._why)

    def _wait(self) -> None:
        """Wait until something happens or a tick has passed, and deal with that."""
        keyboard = self._screen.keyboard if self._screen is not None else None
        sources: list[int] = [self._mailbox.fileno()]
        if keyboard is not None:
            sources.append(keyboard)
        ready, _, _ = select.select(sources, (), (), ESCAPE_S if self._typed else TICK_S)
        self._dirty = bool(ready) or time.monotonic() - self._painted_at >= 2 * TICK_S
        for kind, value in self._mailbox.take():
            self._receive(kind, value)
        while self._signals:
            self._signal(self._signals.popleft())
        if self._screen is not None and keyboard in ready:
            pressed, self._typed = decode_keys(self._typed + self._screen.keys())
        else:
            pressed, self._typed = finish_keys(self._typed), b""
        for key in pressed:
            self._press(key)

    def _paint(self) -> None:
        screen = self._screen
        if screen is None:
            return
        now = self._painted_at = time.monotonic()
        if self._ui.note and now > self._note_until:
            self._ui = dataclasses.replace(self._ui, note="")
        silent_s = now - self._heard_at
        running = self._view is not None and self._view.daemon_pid is not None
        away_s = silent_s if running and silent_s > AWAY_AFTER_S else None
        self._ui = dataclasses.replace(self._ui, away_s=away_s)
        columns, rows = screen.size
        trial, detail = self._detail
        screen.paint(
            compose(
                self._view,
                width=columns,
                height=rows,
                ui=self._ui,
                detail=detail if trial == self._ui.selected else Detail(),
            ),
            columns,
            rows,
        )

    # ------------------------------------------------------------ what happens

    def _receive(self, kind: str, value: Any) -> None:
        if kind == "view":
            self._show(value)
        elif kind == "silence":
            if value:
                self._note(value)
        elif kind == "detail":
            self._detail = value
        elif kind == "note":
            self._note(value)
        elif kind == "failed":
            raise value

    def _show(self, view: View) -> None:
        before, self._view = self._view, view
        self._heard_at = time.monotonic()
        if self._screen is None:
            for line in lines.between(before, view):
                print(line, file=self._out, flush=True)
        if self._stay and self._screen is not None:
            return
        if view.is_over:
            self._why = "over"
        elif view.state == "interrupted":
            self._why = "lost"

    def _note(self, text: str) -> None:
        self._ui = dataclasses.replace(self._ui, note=text)
        self._note_until = time.monotonic() + NOTE_S
        if self._screen is None:
            print(text, file=self._out, flush=True)

    def _press(self, key: str) -> None:
        if key in ("q", "Q") and not self._ui.help:
            self._why = "over" if self._view is not None and self._view.is_over else "detached"
            return
        ids: list[int] = []
        rows = 1
        if self._view is not None and self._screen is not None:
            ids = [trial.id for trial in order(self._view, self._ui)]
            rows = visible_rows(self._view, *self._screen.size, self._ui)
        self._ui = press(self._ui, key, ids, rows)
        self._loupe.look(self._ui.selected if self._ui.detail else None)

    # ------------------------------------------------------------ signals

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if self._screen is not None:
            numbers += [signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT]
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        wakeup = signal.set_wakeup_fd(self._mailbox.wakeup_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _signal(self, number: int) -> None:
        if number == signal.SIGINT:
            self._interrupt()
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self._why = "terminated"
        elif self._screen is None:
            return
        elif number == signal.SIGWINCH:
            self._screen.forget()
        elif number == signal.SIGTSTP:
            self._screen.leave()
            # The real stop; the loop goes on here when the shell continues us.
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT:
            self._screen.enter()

    def _interrupt(self) -> None:
        """Ask in a thread: the daemon may be slow to answer, and a second Ctrl-C must get through meanwhile."""
        if self._on_interrupt is None:
            self._why = "detached"
            return
        self._note("Ctrl-C ..")
        threading.Thread(target=self._ask, args=(self._on_interrupt,), daemon=True).start()

    def _ask(self, on_interrupt: Callable[[], str]) -> None:
        try:
            self._mailbox.post("note", on_interrupt())
        except (GpuschedError, OSError) as error:
            self._mailbox.post("note", f"the daemon did not take it: {error}")

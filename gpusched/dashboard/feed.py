"""Threads that fetch what the live dashboard must not wait for: views from the daemon, a trial's story and log.

The loop of ``live`` waits on one descriptor, the mailbox's; signals wake it the same way. A thread here never touches
the terminal, and none is waited for at the end: they may hang in a socket whose daemon has stopped answering.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.dashboard.model import View, from_json
from gpusched.dashboard.ui import Detail
from gpusched.errors import DamagedState, GpuschedError
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import log_line

#: Gives out views (or their JSON), None while nothing is heard; called again when it has ended too early.
Frames = Callable[[], Iterable[View | Mapping[str, Any] | None]]
Explain = Callable[[int], Sequence[str]]

#: How long to wait before asking again when nobody answered, and at most (reading a long journal takes a while).
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
LOOK_EVERY_S = 1.0


class Mailbox:
    """Messages (kind, value) from threads to a loop; ``fileno`` is readable while there may be some."""

    def __init__(self) -> None:
        self._messages: deque[tuple[str, Any]] = deque()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        return self._reader

    @property
    def wakeup_fd(self) -> int:
        """For ``signal.set_wakeup_fd``."""
        return self._writer

    def post(self, kind: str, value: Any = None) -> None:
        """Post from any thread; nothing happens once the mailbox is closed."""
        with self._lock:
            if self._closed:
                return
            self._messages.append((kind, value))
            # A full pipe is readable already.
            with contextlib.suppress(BlockingIOError):
                os.write(self._writer, b"\0")

    def take(self) -> list[tuple[str, Any]]:
        """Take all messages so far; none once the mailbox is closed."""
        if self._closed:
            return []
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass
        found = []
        while self._messages:
            found.append(self._messages.popleft())
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)


class Feed(threading.Thread):
    """Posts ``("view", View)``, ``("silence", why)`` while nothing is heard, ``("failed", error)`` if it cannot go on.

    It ends after the view of a finished experiment. When the source ends before that, it is asked again, less and less
    often: a daemon that is restarted is found.
    """

    def __init__(
        self, frames: Frames, mailbox: Mailbox, stop_now: threading.Event | None = None
    ) -> None:
        super().__init__(name="gpusched-feed", daemon=True)
        self._frames = frames
        self._mailbox = mailbox
        self._stop_now = stop_now or threading.Event()

    def stop(self) -> None:
        self._stop_now.set()

    def run(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._stop_now.is_set():
            why = ""
            try:
                for frame in self._frames():
                    if self._stop_now.is_set():
                        return
                    if frame is None:
                        self._mailbox.post("silence", "")
                        continue
                    view = frame if isinstance(frame, View) else from_json(frame)
                    self._mailbox.post("view", view)
                    if view.is_over:
                        return
                    if view.daemon_pid is not None:
                        pause_s = RETRY_FIRST_S
            except DamagedState as error:
                self._mailbox.post("failed", error)
                return
            except GpuschedError as error:
                why = str(error)
            except Exception as error:
                self._mailbox.post("failed", error)
                return
            self._mailbox.post("silence", why)
            self._stop_now.wait(pause_s)
            pause_s = min(RETRY_MOST_S, 2 * pause_s)


class Loupe(threading.Thread):
    """A close look at the selected trial once a second; posts ``("detail", (trial, Detail))``."""

    def __init__(self, mailbox: Mailbox, folder: Path | None, explain: Explain | None) -> None:
        super().__init__(name="gpusched-loupe", daemon=True)
        self._mailbox = mailbox
        self._folder = folder
        self._explain = explain
        self._changed = threading.Event()
        self._trial: int | None = None
        self._over = False

    def look(self, trial: int | None) -> None:
        """Look at this trial from now on; None: at nothing."""
        if trial != self._trial:
            self._trial = trial
            self._changed.set()

    def stop(self) -> None:
        self._over = True
        self._changed.set()

    def run(self) -> None:
        while not self._over:
            trial = self._trial
            self._changed.wait(None if trial is None else LOOK_EVERY_S)
            self._changed.clear()
            trial = self._trial
            if trial is not None and not self._over:
                self._mailbox.post("detail", (trial, self._detail(trial)))

    def _detail(self, trial: int) -> Detail:
        story: Sequence[str] = ()
        if self._explain is not None:
            # No failure there ends the dashboard or may write into its screen: the view's decisions are shown instead.
            with contextlib.suppress(Exception):
                story = tuple(self._explain(trial))
        name, log = tail(self._folder, trial) if self._folder is not None else ("", ())
        return Detail(story=tuple(story), log_name=name, log=log)


# ---------------------------------------------------------------- the end of a log

#: Read from the end of a log; a line longer than this is cut.
TAIL_BYTES = 32 * 1024


def tail(folder: Path, trial: int, lines: int = 100) -> tuple[str, tuple[str, ...]]:
    """Return a name for the log, and its last lines, made safe for a terminal; empty if nothing was printed.

    Of the latest incarnation that printed anything, rank 0's output or errors, whichever was written last.
    """
    for logs in _incarnations(ExperimentPaths(folder).trial(trial).root / "logs"):
        path = max(logs / "rank-0.out", logs / "rank-0.err", key=_written_at)
        if _written_at(path) >= 0:
            return f"launch {logs.name}, {path.name}", _last(path, lines)
    return "", ()


def _incarnations(logs: Path) -> Iterator[Path]:
    """Return the log folders of a trial, the latest first."""
    try:
        known = [path for path in logs.iterdir() if path.name.isdigit()]
    except OSError:
        return iter(())
    return iter(sorted(known, key=lambda path: -int(path.name)))


def _written_at(path: Path) -> float:
    """Return when the log was written; -1 for one that is empty or not there."""
    try:
        status = path.stat()
    except OSError:
        return -1.0
    return status.st_mtime if status.st_size else -1.0


def _last(path: Path, lines: int) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - TAIL_BYTES)
            file.seek(start)
            data = file.read(TAIL_BYTES)
    except OSError:
        return ()
    if start and b"\n" in data:
        data = data.partition(b"\n")[2]
    text = data.decode("utf-8", errors="replace").rstrip("\n")
    return tuple(log_line(line) for line in text.split("\n")[-lines:])

"""The live dashboard of an experiment: threads that fetch, and a terminal left as it was.

    Feed (thread) ──views──▶ app ──▶ widgets ──▶ terminal
    Loupe (thread) ─what the open tab shows─▶ ▲
                                    keys, mouse, signals

A thread hands over by ``post(kind, value)`` and is never waited for at the end: the thread may hang in a socket whose
daemon has stopped answering. Ctrl-C is the caller's: ``on_interrupt`` does what Ctrl-C means and returns a sentence
about that; without ``on_interrupt``, Ctrl-C detaches.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.dashboard.model import Standing, from_json
from gpusched.errors import DamagedState, GpuschedError
from gpusched.folder.logcap import read_from
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import log_line

if TYPE_CHECKING:
    from gpusched.dashboard.app import Act, Why

#: Gives out views (or their JSON), None while nothing is heard; called again when it has ended too early.
Frames = Callable[[], Iterable[Standing | Mapping[str, Any] | None]]
Post = Callable[[str, Any], None]
#: Fetches the content of a tab about a trial (None: no trial is selected).
Source = Callable[[int | None], Any]

#: How long to wait before asking again after no answer, and at most (reading a long journal takes a while).
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
LOOK_EVERY_S = 1.0


def is_possible() -> bool:
    """Tell whether this process has a terminal that can show a screen, and is not in its background."""
    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    if not is_utf or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return False
    try:
        streams = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
        return all(map(os.isatty, streams)) and os.tcgetpgrp(streams[1]) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


def watch(
    frames: Frames,
    *,
    folder: Path | None = None,
    on_interrupt: Callable[[], str] | None = None,
    sources: Mapping[str, Source] | None = None,
    act: Act | None = None,
) -> Why:
    """Show an experiment until it is over, its daemon is lost for good, or the person detaches (q).

    ``frames``: gives out views, see ``Frames``. ``folder``: the experiment's, for logs and the history of
    decisions. ``sources``: content of the tabs ``trial`` (a story) and ``curves`` (points over time). ``act``: asks
    the daemon for something. For the main thread, where ``is_possible``; the terminal and the signal handlers are
    afterwards as before. Raises what ``frames`` raises.
    """
    with _in_one_piece():
        from gpusched.dashboard.app import Dashboard

    known = dict(sources or {})
    if folder is not None:
        known |= {"log": Logs(folder), "decisions": History(folder)}
    app = Dashboard(frames, sources=known, on_interrupt=on_interrupt, act=act)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    numbers += [signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        ended = app.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if app.failure is not None:
        raise app.failure
    return ended or "terminated"


@contextlib.contextmanager
def _in_one_piece() -> Iterator[None]:
    """Let Ctrl-C wait for the end of an import: asyncio, once interrupted, cannot be imported again."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


# ---------------------------------------------------------------- threads


class Feed(threading.Thread):
    """Posts ``("view", Standing)``, ``("note", why)`` if a view is refused, ``("failed", error)`` if no view will come.

    The thread ends after the view of a finished experiment. A source that ends before is asked again, less and less
    often: a daemon that is restarted is found.
    """

    def __init__(self, frames: Frames, post: Post, is_over: threading.Event | None = None) -> None:
        super().__init__(name="gpusched-feed", daemon=True)
        self._frames, self._post = frames, post
        self._is_over = is_over or threading.Event()
        self.stop = self._is_over.set

    def run(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._is_over.is_set():
            try:
                for frame in self._frames():
                    if self._is_over.is_set():
                        return
                    if frame is None:
                        continue
                    view = frame if isinstance(frame, Standing) else from_json(frame)
                    self._post("view", view)
                    if view.is_over:
                        return
                    if view.daemon_pid is not None:
                        pause_s = RETRY_FIRST_S
            except Exception as error:
                if isinstance(error, DamagedState) or not isinstance(error, GpuschedError):
                    self._post("failed", error)
                    return
                self._post("note", str(error))
            self._is_over.wait(pause_s)
            pause_s = min(RETRY_MOST_S, 2 * pause_s)


class Loupe(threading.Thread):
    """A close look at the subject of the open tab, once a second; posts ``(tab, (trial, found))``."""

    def __init__(self, post: Post, sources: Mapping[str, Source]) -> None:
        super().__init__(name="gpusched-loupe", daemon=True)
        self._post, self._sources = post, sources
        self._changed = threading.Event()
        self._target: tuple[str, int | None] = ("", None)
        self._is_over = False

    def look(self, tab: str, trial: int | None) -> None:
        """Look at this from now on; at nothing, if the tab has no source."""
        if (tab, trial) != self._target:
            self._target = (tab, trial)
            self._changed.set()

    def stop(self) -> None:
        self._is_over = True
        self._changed.set()

    def run(self) -> None:
        pause_s: float | None = None
        told: tuple[str, Any] | None = None
        while not self._is_over:
            self._changed.wait(pause_s)
            self._changed.clear()
            tab, trial = self._target
            pause_s = None
            if tab in self._sources and not self._is_over:
                begun_s = time.monotonic()
                # A failure of a source does not end the dashboard: the tab shows the view's part.
                with contextlib.suppress(Exception):
                    word = (tab, (trial, self._sources[tab](trial)))
                    if word != told:
                        self._post(*word)
                    told = word
                pause_s = max(LOOK_EVERY_S, 10 * (time.monotonic() - begun_s))


# ---------------------------------------------------------------- files that grow


class LogTail:
    """A file of lines from its beginning, read on as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines: list[str] = []

    def lines(self) -> Sequence[str]:
        """Return all lines so far, harmless to a terminal."""
        try:
            if self._path.stat().st_size < self._offset:  # written anew
                self._offset, self._lines = 0, []
            more, self._offset = read_from(self._path, self._offset, is_growing=True)
            last, _ = read_from(self._path, self._offset)
        except OSError:
            return self._lines
        self._lines += map(log_line, more)
        return [*self._lines, *map(log_line, last)]


class Logs:
    """Output of a trial: of every launch, what each rank wrote, under a heading each."""

    def __init__(self, folder: Path) -> None:
        self._paths = ExperimentPaths(folder)
        self._tails: dict[Path, LogTail] = {}

    def __call__(self, trial: int | None) -> list[str]:
        if trial is None:
            return []
        found: list[str] = []
        logs = self._paths.trial(trial).root / "logs"
        launches = [path for path in logs.glob("*") if path.name.isdigit()]
        for launch in sorted(launches, key=lambda path: int(path.name)):
            for path in sorted(launch.glob("rank-*.*")):
                if lines := self._tails.setdefault(path, LogTail(path)).lines():
                    found += [f"── launch {launch.name}, {path.name}", *lines]
        return found


class History:
    """Decisions and facts since the search began, as the daemon's own log tells them; empty without a log."""

    _TOLD = re.compile(r" *(\d+\.\d) s  (.*)")

    def __init__(self, folder: Path) -> None:
        self._tail = LogTail(ExperimentPaths(folder).log)

    def __call__(self, _trial: int | None) -> list[tuple[float, str]]:
        matches = (self._TOLD.fullmatch(line) for line in self._tail.lines())
        return [(float(match[1]), match[2]) for match in matches if match]

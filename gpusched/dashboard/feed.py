"""The threads that fetch views and the contents of tabs for the dashboard, and the files that it shows as they grow.

A thread hands over by ``post(kind, value)`` and is never waited for at the end: it may hang in a socket whose daemon
has stopped answering.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpusched.dashboard.model import Standing, from_json
from gpusched.errors import DamagedState, GpuschedError
from gpusched.folder.files import read_from
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import log_line

#: Gives out views (or their JSON), None while nothing is heard; called again when it has ended too early.
Frames = Callable[[], Iterable[Standing | Mapping[str, Any] | None]]
Post = Callable[[str, Any], None]
#: Fetches the content of a tab about a trial (None: no trial is selected).
Source = Callable[[int | None], Any]

#: How long to wait before asking again after no answer, and at most (reading a long journal takes a while).
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
#: Lines of a file, and of all files of a trial together, that are kept: the newest.
LINES = 2000


class Feed(threading.Thread):
    """Posts ``("view", Standing)``, ``("note", why)`` if a view is refused, ``("failed", error)`` if no view will come.

    A source that ends is asked again, less and less often: a daemon that is restarted is found, after the search's end
    too.
    """

    def __init__(self, frames: Frames, post: Post) -> None:
        super().__init__(name="gpusched-feed", daemon=True)
        self._frames, self._post = frames, post
        self._is_over = threading.Event()
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
                    if view.daemon_pid is not None:
                        pause_s = RETRY_FIRST_S
            except Exception as error:
                if isinstance(error, DamagedState) or not isinstance(error, GpuschedError):
                    self._post("failed", error)
                    return
                self._post("note", str(error))
            self._is_over.wait(pause_s)
            pause_s = min(RETRY_MOST_S, 2 * pause_s)


class Answers:
    """Contents of the tabs, each asked for in a thread, one after the other; after the end of the search once a trial.

    ``post(tab, answer)`` brings an answer to the thread of the app, which hands it to ``take``.
    """

    def __init__(self, sources: Mapping[str, Source], post: Post) -> None:
        self._sources, self._post = sources, post
        self._is_awaited = False
        #: By tab: the trial, its content, and whether that is final.
        self._known: dict[str, tuple[int | None, Any, bool]] = {}

    def about(self, tab: str, trial: int | None) -> Any:
        """Return what is known about the trial; asks for it where that is nothing."""
        known = self._known.get(tab)
        if known is not None and known[0] == trial:
            return known[1]
        self.fetch(tab, trial, is_over=False)
        return None

    def fetch(self, tab: str, trial: int | None, *, is_over: bool) -> None:
        """Ask, unless an answer is awaited or nothing changes any more."""
        about, _, is_final = self._known.get(tab, (None, None, False))
        source = self._sources.get(tab)
        if self._is_awaited or source is None or (is_over and is_final and about == trial):
            return

        def ask() -> None:
            found, is_last = None, False
            with contextlib.suppress(Exception):  # the tab shows the view's part
                found, is_last = source(trial), is_over
            self._post(tab, (trial, found, is_last))

        self._is_awaited = True
        threading.Thread(target=ask, daemon=True).start()

    def take(self, tab: str, answer: tuple[int | None, Any, bool]) -> None:
        """Keep an answer."""
        self._is_awaited = False
        self._known[tab] = answer


# ---------------------------------------------------------------- files that grow


class LogTail:
    """The newest lines of a file, read on as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        """Return the newest lines, harmless to a terminal."""
        try:
            more, self._offset = read_from(self._path, self._offset, is_growing=True)
            last, _ = read_from(self._path, self._offset)
        except OSError:
            return self._lines
        self._lines = newest([*self._lines, *map(_shown, more)])
        return [*self._lines, *map(_shown, last)]


def _shown(line: str) -> str:
    return log_line(line)[:1000]


class Logs:
    """Output of a trial: of every launch, what each rank wrote, under a heading each."""

    def __init__(self, folder: Path) -> None:
        self._paths = ExperimentPaths(folder)
        self._trial: int | None = None
        self._tails: dict[Path, LogTail] = {}

    def __call__(self, trial: int | None) -> list[str]:
        if trial is None:
            return []
        if trial != self._trial:
            self._trial, self._tails = trial, {}
        found: list[str] = []
        files = self._paths.trial(trial)
        for launch in files.incarnations:
            for path in sorted(files.logs(launch).glob("rank-*.*")):
                if lines := self._tails.setdefault(path, LogTail(path)).lines():
                    found += [f"── launch {launch}, {path.name}", *lines]
        return newest(found)


def newest(lines: list[str]) -> list[str]:
    """Keep at most ``LINES``; half of them go at once, so that the first one shown changes seldom."""
    excess = max(0, len(lines) - LINES)
    return lines[-(-excess // (LINES // 2)) * (LINES // 2) :]

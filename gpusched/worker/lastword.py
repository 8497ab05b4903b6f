"""The last word of an incarnation: how its rank 0 left, if it left in good order.

``yielded`` is written when the scheduler's answer made the script leave, after its checkpoint (if one was asked for) is
committed; ``finished`` when the interpreter ends by itself, without an uncaught exception or a failing exit code.
Once it is written, how the processes end is of no interest; without one, the trial failed or was killed.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn

from gpusched import failpoints
from gpusched.folder.files import private_folder, write_durably
from gpusched.worker.errorfile import headline, say, trace_of, write_error_file

Why = Literal["yielded", "finished"]

_failed = False
_watching = False


def mark_failed() -> None:
    """Note that this process ends badly: no ``finished`` may be written for it."""
    global _failed
    _failed = True


def has_failed() -> bool:
    """Whether this process ends badly."""
    return _failed


def watch_endings() -> None:
    """Notice a bad ending in an interpreter that runs the script itself, and leave torchrun's error file.

    ``rank.py`` notices by its own means.
    """
    global _watching
    if _watching:
        return
    _watching = True
    show, leave = sys.excepthook, sys.exit

    def excepthook(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        mark_failed()
        script = str(getattr(sys.modules.get("__main__"), "__file__", ""))
        write_error_file(headline(value, script), trace_of(value.with_traceback(trace), script))
        show(kind, value, trace)

    def exit(status: Any = None, /) -> NoReturn:
        if status not in (None, 0):
            mark_failed()
        leave(status)

    sys.excepthook = excepthook
    sys.exit = exit


class LastWord:
    """Written at most once, by the process that made it. ``path`` None: nobody is there to read it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._pid = os.getpid()
        self.step: int | None = None
        self.saved_step: int | None = None
        self.said: Why | None = None
        #: What the end of the interpreter means.
        self.at_exit: Why = "finished"
        #: Called before it is written.
        self.before: Callable[[], object] = lambda: None
        if path is not None:
            watch_endings()
            atexit.register(self._at_exit)

    def has_saved(self, step: int) -> None:
        """A checkpoint of this step is committed."""
        self.saved_step = step

    def say(self, why: Why, saved_step: int | None) -> bool:
        """Write it durably. False, said on stderr, if the disk refuses: without it nobody knows of a good order."""
        if self.said is not None:
            return True
        if self._path is None:
            self.said = why
            return True
        self.before()
        word = {"why": why, "step": self.step, "saved_step": saved_step}
        failpoints.reach("lastword.before")
        try:
            private_folder(self._path.parent)
            write_durably(self._path, json.dumps(word).encode() + b"\n")
        except OSError as error:
            say(f"{self._path} cannot be written: {error}")
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        self.said = why
        failpoints.reach("lastword.after")
        return True

    def _at_exit(self) -> None:
        if os.getpid() == self._pid and not _failed:
            self.say(self.at_exit, self.saved_step)

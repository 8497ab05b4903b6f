"""The daemon's log: a disk that refuses a line ends no search, and what is printed for days does not fill one.

The log is the daemon's standard output and error. Whoever runs the daemon opens it for appending (``daemon/start.py``).
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

from gpusched.folder.logcap import LogCap

#: How often the daemon's and the warm server's logs are looked at.
LOOK_EVERY_S = 5.0


class _Unfailing(io.RawIOBase):
    """Writes to a descriptor what it takes; drops the rest. The journal has all that matters."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        size = len(view)
        with suppress(OSError):
            while view:
                view = view[os.write(self._descriptor, view) :]
        return size


def write_unfailingly() -> None:
    """From now on ``print`` never raises."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_Unfailing(descriptor)),
            "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for descriptor in (1, 2)
    )


class Logs:
    """The logs in an experiment's folder, each kept to its first and last part."""

    def __init__(self, folder: Path) -> None:
        self._cap = LogCap(folder, watched=False)
        self._next_at = 0.0

    def look(self, now: float) -> None:
        """If it is time for a look."""
        if now >= self._next_at:
            self._next_at = now + LOOK_EVERY_S
            self._cap.look(now)

"""The mark: the number of the newest committed event, in a small file beside the journal.

A log cannot tell by itself that its end is missing: SQLite takes a damaged or lost write-ahead log for transactions
that never were. The mark is written *after* each commit and never synced, so it is never ahead of what was committed;
a journal that ends before it has lost events. It costs one small write, and an unreadable mark only means that nothing
is known.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path


class Mark:
    """An open mark file. Writing never raises: without a mark everything works but the check of the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, seq: int) -> None:
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _line(seq), 0)

    def read(self) -> int:
        """The number; 0 where there is no readable mark."""
        if self._descriptor is None:
            return 0
        try:
            line = os.pread(self._descriptor, 64, 0)
            seq = int(line[:16])
        except (OSError, ValueError):
            return 0
        return seq if line == _line(seq) else 0

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _line(seq: int) -> bytes:
    """Always of the same length, so that overwriting it needs no space on the disk."""
    number = f"{seq:016d}".encode()
    return number + f" {zlib.crc32(number):010d}\n".encode()

"""Damage of a journal: how it is noticed and worded.

The mark is the number of the newest synced event, in a small file beside the journal. A log cannot tell by itself that
its end is missing: SQLite takes a damaged or lost write-ahead log for transactions that never were. The mark is written
*after* each sync and never synced itself, so it is never ahead of what was synced; a journal that ends before it has
lost events. It costs one small write, and an unreadable mark only means that nothing is known.

Nothing is repaired and nothing skipped: what else is wrong in a damaged file, nobody knows.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from gpusched.errors import DamagedState, GpuschedError, InputError

# ---------------------------------------------------------------- the mark


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
        """Return the number; 0 without a readable mark."""
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
    """Format the mark, always of the same length, so that overwriting needs no space on the disk."""
    number = f"{seq:016d}".encode()
    return number + f" {zlib.crc32(number):010d}\n".encode()


# ---------------------------------------------------------------- in words


def damaged(path: Path, what: str) -> DamagedState:
    """Word damage that keeps the search from continuing."""
    return DamagedState(
        f"{path}: {what}, so this search cannot continue. Its best/ and the trials' checkpoints are files of their own "
        "and not affected. Begin a new search with the best configuration as 'try_first' in its recipe: "
        "'gpusched best' prints the configuration"
    )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Word an error of SQLite, or of the content, as one message for the user."""
    try:
        yield
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        raise _in_words(path, error) from error


def _in_words(path: Path, error: Exception) -> GpuschedError:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return InputError(
                f"{path}: the journal cannot be opened ({error}); look at the permissions of its folder"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return InputError(f"{path}: another process has the journal open")
        case sqlite3.SQLITE_FULL:
            return GpuschedError(f"{path}: the disk is full; make room and try again")
        case sqlite3.SQLITE_IOERR:
            return DamagedState(
                f"{path}: the disk answers with an error ({error}); the journal was not changed. Look at the kernel's "
                "messages (dmesg) and try again"
            )
        case _:
            return damaged(path, f"the journal is damaged ({error})")

"""Damage of a journal: how it is noticed, worded, and left behind.

* The mark is the number of the newest synced event, in a small file beside the journal. A log cannot tell by itself
  that its end is missing: SQLite takes a damaged or lost write-ahead log for transactions that never were. The mark is
  written *after* each sync and never synced itself, so it is never ahead of what was synced; a journal that ends before
  it has lost events. It costs one small write, and an unreadable mark only means that nothing is known.
* Salvage replaces a damaged journal by a new one that holds the events before the damage. Nothing is repaired in place,
  since nobody knows what else is wrong in a damaged file. The new journal is built beside the old one, complete and
  synced, before anything is moved; the damaged one is kept as ``journal.db.damaged`` for a closer look. A crash at any
  instant leaves either the damaged journal or a salvage that ``finish_salvage`` ends.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gpusched import failpoints
from gpusched.errors import DamagedState, GpuschedError, InputError
from gpusched.folder.files import sync

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


# ---------------------------------------------------------------- salvage

#: The write-ahead log belongs to its database and moves with it; the index of the log is made anew.
_WAL, _SHM = "-wal", "-shm"


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def replace_journal(path: Path, build: Callable[[Path], None]) -> None:
    """Put the one complete, closed file that ``build`` writes in the place of the journal."""
    unfinished = _beside(path, ".salvaging")
    for leftover in (unfinished, _beside(unfinished, _WAL), _beside(unfinished, _SHM)):
        leftover.unlink(missing_ok=True)
    build(unfinished)
    unfinished.replace(_beside(path, ".salvaged"))
    sync(path.parent)
    failpoints.reach("salvage.built")
    finish_salvage(path)


def finish_salvage(path: Path) -> None:
    """End a salvage that got as far as a complete new journal; do nothing without one."""
    salvaged = _beside(path, ".salvaged")
    if not salvaged.exists():
        return
    kept = _damaged_name(path)
    # The log goes first: beside the new journal it would be taken for its own.
    for suffix in (_WAL, ""):
        part = _beside(path, suffix)
        if part.exists():
            part.replace(_beside(kept, suffix))
    _beside(path, _SHM).unlink(missing_ok=True)
    sync(path.parent)
    failpoints.reach("salvage.aside")
    salvaged.replace(path)
    sync(path.parent)
    failpoints.reach("salvage.after")


def _damaged_name(path: Path) -> Path:
    """Return ``journal.db.damaged``, or with the first number behind that no other salvage has taken."""
    name, number = _beside(path, ".damaged"), 1
    while name.exists():
        number += 1
        name = _beside(path, f".damaged-{number}")
    return name


# ---------------------------------------------------------------- in words


def damaged(path: Path, what: str, good: int) -> DamagedState:
    """Word damage found behind ``good`` events."""
    return DamagedState(
        f"{path}: {what}; the {good} before it are good. 'gpusched resume --salvage' continues from those "
        "and from the trials' own files"
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
                "messages (dmesg) and try again; if the error stays, 'gpusched resume --salvage' continues from the "
                "readable part"
            )
        case _:
            return DamagedState(
                f"{path}: the journal is damaged ({error}). 'gpusched resume --salvage' continues from what can be "
                "read, and from the trials' own files"
            )

"""The journal: every event of a search and the commands it caused, in order, in SQLite.

It is the product's memory. Resume replays it through ``Experiment.handle``; the dashboard, ``explain`` and the exports
read it after the daemon is gone.

* One connection, the daemon's. WAL and ``synchronous=FULL``: what is committed survives a power cut.
* ``append`` only collects; ``commit`` writes and syncs. Nothing may be *done* about an event before it is committed;
  an answer of "go on" does nothing outside and need not wait.
* What is damaged is named, never skipped: a changed row by its checksum (``rows``), a missing end by the mark.
* ``FORMAT`` is 1 until the first release, and raised with every change of events or commands after it. A journal of
  another format is refused, with both named. An event whose checksum holds and that cannot be read is another
  version's, not damage.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.core.commands import Command
from gpusched.core.events import Event
from gpusched.errors import Fenced
from gpusched.folder.files import is_full, sync
from gpusched.journal.local_disk import require_journal
from gpusched.journal.rows import (
    Entry,
    Row,
    checked,
    commands_text,
    connect,
    crc_of,
    create,
    damaged,
    entry_of,
    event_body,
    explained,
    meta_of,
    meta_row,
    refuse_others,
)

#: Input/output errors behind which an exhausted quota may be; a failed fsync is not among them.
_MAY_BE_ROOM = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)


class DiskFull(Exception):
    """A disk without room for the appended events. None is lost or acknowledged; ``commit`` may be tried again."""


class Mark:
    """The number of the newest committed event, in a small file beside the journal.

    A log cannot tell by itself that its end is missing: SQLite takes a damaged or lost write-ahead log for transactions
    that never were. The mark is written *after* each commit and never synced itself, so it is never ahead of what was
    synced; a journal that ends before it has lost events. Writing never raises: without a readable mark everything
    works but this check.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

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


class Journal:
    """An open journal. Not for two processes at once: whoever opens it holds the search's lock."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, is_new: bool) -> None:
        #: The one connection, for settings of SQLite's.
        self.connection = connection
        self._path = path
        self._mark = Mark(path.with_name(path.name + "-mark"))
        self._pending: list[Row] = []
        #: Of the daemon that writes; None: nobody is fenced off (simulations).
        self._epoch: int | None = None
        #: Of the last event that was appended or read.
        self._seq = 0
        self._crc = 0
        #: Whether all there is has been read, so that ``append`` knows where to continue.
        self._at_end = is_new

    # ------------------------------------------------------------ open

    @classmethod
    def create(cls, path: Path, meta: Mapping[str, Any]) -> Journal:
        """Create a journal. ``meta`` is what else a resume must know; any JSON.

        Raises InputError if there is one already, or if the folder cannot be written.
        """
        path = path.resolve()  # not beside a link, but beside the file: the log, the mark
        journal = cls(create(path, meta), path, is_new=True)
        journal._epoch = meta.get("epoch")
        sync(path.parent)
        journal._mark.write(0)
        return journal

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open an existing journal. Raises DamagedState if the file is another, damaged, or newer."""
        link, path = path, path.resolve()
        require_journal(link)
        with explained(path):
            connection = connect(path)
            try:
                refuse_others(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(connection, path, is_new=False)

    @property
    def meta(self) -> dict[str, Any]:
        """Raises DamagedState where it is not as it was written."""
        with explained(self._path):
            return meta_of(self.connection)

    def set_epoch(self, epoch: int) -> None:
        """Claim the journal for daemon ``epoch``: no older daemon can commit any more, nor this one after a newer."""
        with explained(self._path):
            row = meta_row({**self.meta, "epoch": epoch})
            self.connection.execute("REPLACE INTO meta VALUES (1, ?, ?)", row)
        self._epoch = epoch
        failpoints.reach("epoch.after")

    def _refuse_if_fenced(self) -> None:
        """Within the transaction that would write, so that no newer daemon can come in between. Raises Fenced."""
        if self._epoch is None:
            return
        newest = int(meta_of(self.connection).get("epoch", 0))
        if newest > self._epoch:
            self.connection.execute("ROLLBACK")
            raise Fenced(self._epoch, newest)

    # ------------------------------------------------------------ write

    def append(self, event: Event, commands: Sequence[Command]) -> None:
        """Collect an event. It is not on disk before ``commit``."""
        assert self._at_end, "a journal is read to its end before it continues"
        kind, body, text = type(event).__name__, event_body(event), commands_text(commands)
        at = float(event.at)
        self._seq += 1
        self._crc = crc_of(self._crc, self._seq, at, kind, body, text)
        self._pending.append((self._seq, at, kind, body, text, self._crc))

    def commit(self) -> None:
        """Write and sync what was appended.

        Raises DiskFull; and sqlite3.Error where nothing on that disk can be trusted any more, as after a failed fsync
        (Rebello et al., ATC'20): the caller must end. Either way nothing of the batch is acknowledged.
        """
        if not self._pending:
            return
        connection = self.connection
        failpoints.reach("journal.before")
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._refuse_if_fenced()
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", self._pending)
            failpoints.reach("journal.inserted")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if _wants_room(error, self._path.parent):
                raise DiskFull(f"{self._path.parent}: {error}") from error
            raise
        failpoints.reach("journal.synced")
        self._pending.clear()
        self._mark.write(self._seq)
        failpoints.reach("journal.marked")

    def close(self) -> None:
        """Commit and close."""
        try:
            self.commit()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without a commit, as the end of the process would."""
        self.connection.close()
        self._mark.close()

    # ------------------------------------------------------------ read

    def entries(self) -> Iterator[Entry]:
        """Yield all events in order, each checked. After the end is read, ``append`` continues behind the last.

        Raises DamagedState, naming the event, at the first row that is not as it was written.
        """
        seq = 0
        with explained(self._path):
            for row in checked(self.connection, self._path):
                entry = entry_of(row, self._path)
                seq = entry.seq
                if not self._at_end:
                    self._seq, self._crc = seq, row[-1]
                yield entry
        marked = self._mark.read()
        if marked > seq:
            raise damaged(self._path, f"events {seq + 1} to {marked} are missing")
        self._at_end = True


def _wants_room(error: sqlite3.Error, folder: Path) -> bool:
    """SQLite calls a full disk by its name, but an exhausted quota an input/output error."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL:
        return True
    return code in _MAY_BE_ROOM and is_full(folder)

"""The journal: every event of an experiment and the commands it caused, in order, in SQLite.

It is the product's memory. Resume replays it through ``Experiment.handle``; the dashboard, ``explain`` and the exports
read it after the daemon is gone.

* One connection, the daemon's. WAL and ``synchronous=FULL``: what is committed survives a power cut.
* ``append`` only collects; ``commit`` writes and syncs. Nothing may be *done* about an event before it is committed;
  an answer of "go on" does nothing outside and need not wait.
* Every row carries a CRC chained over all rows before it, so a changed, missing or swapped row is found; the mark
  (``damage``) finds a missing end. What is damaged is named, never skipped.
* ``FORMAT`` is raised with every change of events or commands. A newer journal is refused, with both versions named; an
  older one takes this number together with the first event that this version adds, so that older versions refuse it.
  An event whose checksum holds and that cannot be read is a newer version's, not damage: salvage would drop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.core.decisions import Command
from gpusched.core.events import Event
from gpusched.errors import DamagedState, Fenced, InputError, NewerFormat
from gpusched.folder.files import sync
from gpusched.folder.reserve import is_full
from gpusched.journal.codec import commands_from, commands_text, event_body, event_from
from gpusched.journal.damage import Mark, damaged, explained, finish_salvage, replace_journal

FORMAT = 7
APPLICATION_ID = 0x67707363  # "gpsc"
#: How long to wait for a quick command that reads the journal of a dead daemon at the same time.
_LOCK_TIMEOUT_S = 2.0
#: Input/output errors behind which an exhausted quota may be; a failed fsync is not among them.
_MAY_BE_ROOM = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)

_SCHEMA = """
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, commands TEXT NOT NULL, crc INTEGER NOT NULL
);
"""
_Row = tuple[int, float, str, str, str, int]


class DiskFull(Exception):
    """A disk without room for the appended events. None is lost or acknowledged; ``commit`` may be tried again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, the commands it caused, and its number (from 1)."""

    seq: int
    event: Event
    commands: list[Command]


class Journal:
    """An open journal. Not for two processes at once: whoever opens it holds the experiment's lock."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, is_new: bool) -> None:
        #: The one connection, for settings of SQLite's.
        self.connection = connection
        self._path = path
        self._mark = Mark(path.with_name(path.name + "-mark"))
        self._pending: list[_Row] = []
        (self._format,) = connection.execute("PRAGMA user_version").fetchone()
        #: Of the daemon that writes; None: nobody is fenced off (simulations).
        self._epoch: int | None = None
        #: Of the last event that was appended or read.
        self._seq = 0
        self._crc = 0
        #: Whether all there is has been read, so that ``append`` knows where to go on.
        self._at_end = is_new

    # ------------------------------------------------------------ open

    @classmethod
    def create(cls, path: Path, meta: Mapping[str, Any]) -> Journal:
        """Create a journal. ``meta`` is what else a resume must know; any JSON.

        Raises InputError if there is one already, or if the folder cannot be written.
        """
        journal = cls(_create(path, meta), path, is_new=True)
        journal._epoch = meta.get("epoch")
        sync(path.parent)
        journal._mark.write(0)
        return journal

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open an existing journal. Raises DamagedState if the file is none, damaged, or newer."""
        finish_salvage(path)
        if not path.is_file():
            raise DamagedState(f"{path}: no journal is here, so this folder is not an experiment")
        with explained(path):
            connection = _connect(path)
            try:
                _refuse_others(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(connection, path, is_new=False)

    @property
    def meta(self) -> dict[str, Any]:
        """Raises DamagedState where it is not as it was written."""
        with explained(self._path):
            return _meta(self.connection)

    def set_meta(self, meta: Mapping[str, Any]) -> None:
        """Set some keys, durably."""
        with explained(self._path):
            self.connection.execute(
                "REPLACE INTO meta VALUES (1, ?, ?)", _meta_row({**self.meta, **meta})
            )

    def set_epoch(self, epoch: int) -> None:
        """Claim the journal for daemon ``epoch``: no older daemon can commit any more, nor this one after a newer."""
        self.set_meta({"epoch": epoch})
        self._epoch = epoch
        failpoints.reach("epoch.after")

    def _refuse_if_fenced(self) -> None:
        """Within the transaction that would write, so that no newer daemon can come in between. Raises Fenced."""
        if self._epoch is None:
            return
        newest = int(self.meta.get("epoch", 0))
        if newest > self._epoch:
            self.connection.execute("ROLLBACK")
            raise Fenced(self._epoch, newest)

    # ------------------------------------------------------------ write

    def append(self, event: Event, commands: Sequence[Command]) -> None:
        """Collect an event. It is not on disk before ``commit``."""
        assert self._at_end, "a journal is read to its end before it goes on"
        kind, body, text = type(event).__name__, event_body(event), commands_text(commands)
        at = float(event.at)
        self._seq += 1
        self._crc = _crc(self._crc, self._seq, at, kind, body, text)
        self._pending.append((self._seq, at, kind, body, text, self._crc))

    @property
    def is_dirty(self) -> bool:
        return bool(self._pending)

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
            self._raise_format()
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", self._pending)
            failpoints.reach("journal.inserted")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if _wants_room(error, self._path.parent):
                raise DiskFull(str(error)) from error
            raise
        failpoints.reach("journal.synced")
        self._format = FORMAT
        self._pending.clear()
        self._mark.write(self._seq)
        failpoints.reach("journal.marked")

    def _raise_format(self) -> None:
        """Give an older journal this version's number, in the transaction that adds events of this version."""
        if self._format < FORMAT:
            self.connection.execute(f"PRAGMA user_version={FORMAT}")

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
        """Yield all events in order, each checked. After the end is read, ``append`` goes on behind the last.

        Raises DamagedState, naming the event, at the first row that is not as it was written.
        """
        seq = 0
        with explained(self._path):
            for row in _checked(self.connection, self._path):
                entry = _entry(row, self._path)
                seq = entry.seq
                if not self._at_end:
                    self._seq, self._crc = seq, row[-1]
                yield entry
        marked = self._mark.read()
        if marked > seq:
            raise damaged(self._path, f"events {seq + 1} to {marked} are missing", seq)
        self._at_end = True

    def drop_after_last_good(self) -> int:
        """Salvage: go on behind the last event that ``entries`` gave out; return how many were lost.

        The damaged journal is kept beside the new one. Raises DamagedState if not even ``meta`` can be read.
        """
        meta, last = self.meta, self._seq
        dropped = max(self._mark.read(), self._highest()) - last

        def build(path: Path) -> None:
            connection = _create(path, meta)
            good = self.connection.execute(
                "SELECT * FROM events WHERE seq <= ? ORDER BY seq", (last,)
            )
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", good)
            connection.execute("COMMIT")
            connection.close()

        with explained(self._path):
            replace_journal(self._path, build)
            self.connection.close()
            self.connection = _connect(self._path)
        self._mark.write(last)
        self._at_end = True
        return max(0, dropped)

    def _highest(self) -> int:
        try:
            (highest,) = self.connection.execute("SELECT max(seq) FROM events").fetchone()
        except sqlite3.Error:
            return 0
        return highest if isinstance(highest, int) else 0


# ---------------------------------------------------------------- rows


@dataclass(slots=True)
class Place:
    """A place in a journal: behind event ``seq`` with the checksum ``crc``."""

    seq: int = 0
    crc: int = 0


def read(path: Path, kinds: Collection[str] = (), place: Place | None = None) -> Iterator[Entry]:
    """Yield the entries of a journal that a daemon may be writing, over a connection that only reads.

    ``kinds``: these alone, and entries with a launch or yield. Begins at ``place``, and moves it behind what was read.
    Raises DamagedState.
    """
    place = place or Place()
    with _reading(path) as connection:
        for row in _checked(connection, path, place.seq, place.crc):
            place.seq, place.crc = row[0], row[-1]
            if not kinds or row[2] in kinds or '"Launch"' in row[4] or '"Yield"' in row[4]:
                yield _entry(row, path)


def read_meta(path: Path) -> dict[str, Any]:
    """Return what else a replay must know, of a journal that a daemon may be writing. Raises DamagedState."""
    with _reading(path) as connection:
        return _meta(connection)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise DamagedState(f"{path}: no journal is here, so this folder is not an experiment")
    with explained(path):
        quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(f"file:{quoted}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_S)
        try:
            _refuse_others(connection, path)
            yield connection
        finally:
            connection.close()


def _meta(connection: sqlite3.Connection) -> dict[str, Any]:
    row = connection.execute("SELECT value, crc FROM meta").fetchone()
    if row is None or row[1] != zlib.crc32(str(row[0]).encode()):
        raise ValueError("its description of the experiment")
    found: dict[str, Any] = json.loads(row[0])
    return found


def _checked(
    connection: sqlite3.Connection, path: Path, seq: int = 0, crc: int = 0
) -> Iterator[_Row]:
    """Yield each row behind ``seq`` that is as it was written. Raises DamagedState at the first that is not."""
    query = "SELECT seq, at, kind, body, commands, crc FROM events WHERE seq > ? ORDER BY seq"
    for row in connection.execute(query, (seq,)):
        number, at, kind, body, commands, stored = row
        crc = _crc(crc, seq + 1, at, kind, body, commands)
        if number != seq + 1 or stored != crc:
            raise damaged(path, f"event {seq + 1} is damaged or missing", seq)
        seq = number
        yield row


def _entry(row: _Row, path: Path) -> Entry:
    seq, at, kind, body, commands, _ = row
    try:
        return Entry(seq, event_from(kind, at, body), commands_from(commands))
    except (KeyError, TypeError, ValueError) as error:
        raise NewerFormat(
            f"{path}: event {seq} ({kind}) is whole, but this gpusched cannot read it ({error}); "
            "use the newer gpusched that wrote it"
        ) from error


# ---------------------------------------------------------------- files


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path, meta: Mapping[str, Any]) -> sqlite3.Connection:
    """Create a complete, empty journal in one transaction: a crash leaves none, or a whole one."""
    with explained(path):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise InputError(f"{path}: the journal cannot be made: {error.strerror}") from None
        connection = _connect(path)
        try:
            connection.executescript(
                f"BEGIN; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT};{_SCHEMA}"
            )
            connection.execute("INSERT INTO meta VALUES (1, ?, ?)", _meta_row(meta))
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


def _refuse_others(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise DamagedState(f"{path}: not a journal of gpusched (application id {application:#x})")
    if version > FORMAT:
        raise NewerFormat(
            f"{path}: the journal has format {version}, this gpusched reads up to format {FORMAT}; "
            "use the newer gpusched that wrote it"
        )
    if version < 1:
        raise DamagedState(
            f"{path}: the journal has format {version}, which no gpusched ever wrote"
        )


def _meta_row(meta: Mapping[str, Any]) -> tuple[str, int]:
    text = json.dumps(meta)
    return text, zlib.crc32(text.encode())


def _crc(before: int, seq: int, at: float, kind: str, body: str, commands: str) -> int:
    return zlib.crc32(f"{seq}|{at!r}|{kind}|{body}|{commands}".encode(), before)


def _wants_room(error: sqlite3.Error, folder: Path) -> bool:
    """SQLite calls a full disk by its name, but an exhausted quota an input/output error."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL:
        return True
    return code in _MAY_BE_ROOM and is_full(folder)

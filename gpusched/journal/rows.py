"""Rows of the journal: how an event and its commands are written, read and checked; and the file they stand in.

* A field of an event that is left at its default is not written, so that a report is as short as it can be.
* Every row carries a CRC chained over all rows before it, so a changed, missing or swapped row is found.
* ``read`` opens the file for an instant and for reading only, beside the daemon that writes it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins
from msgspec.json import Encoder

from gpusched.core.commands import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event
from gpusched.errors import DamagedState, GpuschedError, InputError
from gpusched.journal.local_disk import require_journal

FORMAT = 1
APPLICATION_ID = 0x67707363  # "gpsc"
#: How long to wait for a quick command that reads the journal of a dead daemon at the same time.
_LOCK_TIMEOUT_S = 2.0
_SCHEMA = """
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, commands TEXT NOT NULL, crc INTEGER NOT NULL
);
"""
Row = tuple[int, float, str, str, str, int]

# ---------------------------------------------------------------- events and commands

_encode = Encoder().encode


def to_text(value: Any) -> str:
    """Return compact JSON. Raises ValueError for a number that is not finite."""
    try:
        data = _encode(value)
        if b"null" not in data:  # which is what msgspec writes for NaN, too
            return data.decode()
    except UnicodeEncodeError:
        pass  # output of a failing script may be invalid Unicode: escaped
    return json.dumps(to_builtins(value), separators=(",", ":"), allow_nan=False)


def event_body(event: Event) -> str:
    """Return the fields as a JSON object in text, without ``at``, the first, which the journal has beside it."""
    text = to_text(event)
    return "{" + text[text.index(",") + 1 :]


def event_from(kind: str, at: float, body: str) -> Event:
    """Read the event again. Raises KeyError, TypeError or ValueError on anything else."""
    return convert({"at": at, **json.loads(body)}, EVENT_TYPES[kind])


def commands_text(commands: Sequence[Command]) -> str:
    """Commands as a JSON list of [name, fields]; nothing at all for none."""
    return to_text([(type(one).__name__, one) for one in commands]) if commands else ""


def commands_from(text: str) -> list[Command]:
    """Read the commands again."""
    if not text:
        return []
    return [convert(fields, COMMAND_TYPES[name]) for name, fields in json.loads(text)]


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, the commands it caused, and its number (from 1)."""

    seq: int
    event: Event
    commands: list[Command]


@dataclass(slots=True)
class Cursor:
    """A place in a journal: behind event ``seq`` with the checksum ``crc``."""

    seq: int = 0
    crc: int = 0


def read(path: Path, cursor: Cursor | None = None) -> Iterator[Entry]:
    """Yield the entries of a journal that a daemon may be writing, over a connection that only reads.

    Begins at ``cursor``, and moves it behind what was read. Raises DamagedState.
    """
    cursor = cursor or Cursor()
    with _reading(path) as connection:
        for row in checked(connection, path, cursor.seq, cursor.crc):
            cursor.seq, cursor.crc = row[0], row[-1]
            yield entry_of(row, path)


def read_meta(path: Path) -> dict[str, Any]:
    """Return what else a replay must know, of a journal that a daemon may be writing. Raises DamagedState."""
    with _reading(path) as connection:
        return meta_of(connection)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    require_journal(path)
    with explained(path):
        file = path.resolve()
        # Of a journal that was closed a reader needs no shared memory, for which a full disk has no room.
        is_closed = not file.with_name(f"{file.name}-wal").is_file()
        uri = f"{file.as_uri()}?mode=ro{'&immutable=1' * is_closed}"
        connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)
        try:
            refuse_others(connection, path)
            yield connection
        finally:
            connection.close()


def meta_of(connection: sqlite3.Connection) -> dict[str, Any]:
    row = connection.execute("SELECT value, crc FROM meta").fetchone()
    if row is None or row[1] != zlib.crc32(str(row[0]).encode()):
        raise ValueError("its description of the search")
    found: dict[str, Any] = json.loads(row[0])
    return found


def checked(
    connection: sqlite3.Connection, path: Path, seq: int = 0, crc: int = 0
) -> Iterator[Row]:
    """Yield each row behind ``seq`` that is as it was written. Raises DamagedState at the first that is not."""
    query = "SELECT seq, at, kind, body, commands, crc FROM events WHERE seq > ? ORDER BY seq"
    for row in connection.execute(query, (seq,)):
        number, at, kind, body, commands, stored = row
        crc = crc_of(crc, seq + 1, at, kind, body, commands)
        if number != seq + 1 or stored != crc:
            raise damaged(path, f"event {seq + 1} is damaged or missing")
        seq = number
        yield row


def entry_of(row: Row, path: Path) -> Entry:
    seq, at, kind, body, commands, _ = row
    try:
        return Entry(seq, event_from(kind, at, body), commands_from(commands))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedState(
            f"{path}: event {seq} ({kind}) is whole, but this gpusched cannot read it ({error}); "
            "use the gpusched that wrote it"
        ) from error


# ---------------------------------------------------------------- files


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def create(path: Path, meta: Mapping[str, Any]) -> sqlite3.Connection:
    """Create a complete, empty journal in one transaction: a crash leaves none, or a whole one."""
    with explained(path):
        try:
            path.touch(0o600, exist_ok=False)
        except OSError as error:
            raise InputError(f"{path}: the journal cannot be made: {error.strerror}") from None
        connection = connect(path)
        try:
            connection.executescript(
                f"BEGIN; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT};{_SCHEMA}"
            )
            connection.execute("INSERT INTO meta VALUES (1, ?, ?)", meta_row(meta))
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


def refuse_others(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise DamagedState(f"{path}: not a journal of gpusched (application id {application:#x})")
    if version != FORMAT:
        raise DamagedState(
            f"{path}: the journal has format {version}, this gpusched reads format {FORMAT}; "
            "use the gpusched that wrote it"
        )


def meta_row(meta: Mapping[str, Any]) -> tuple[str, int]:
    text = json.dumps(meta)
    return text, zlib.crc32(text.encode())


def crc_of(before: int, seq: int, at: float, kind: str, body: str, commands: str) -> int:
    return zlib.crc32(f"{seq}|{at!r}|{kind}|{body}|{commands}".encode(), before)


# ---------------------------------------------------------------- damage, in words
# Nothing is repaired and nothing skipped: what else is wrong in a damaged file, nobody knows.


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
    code = getattr(error, "sqlite_errorcode", 0)
    match sqlite3.SQLITE_FULL if code == sqlite3.SQLITE_IOERR_SHMSIZE else code & 0xFF:
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return InputError(
                f"{path}: the journal cannot be opened ({error}); look at the permissions of its folder"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return InputError(f"{path}: another process has the journal open; end it")
        case sqlite3.SQLITE_FULL:
            return GpuschedError(f"{path}: the disk is full; make room and try again")
        case sqlite3.SQLITE_IOERR:
            return DamagedState(
                f"{path}: the disk answers with an error ({error}); the journal was not changed. Look at the kernel's "
                "messages (dmesg) and try again"
            )
        case _:
            return damaged(path, f"the journal is damaged ({error})")

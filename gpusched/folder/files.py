"""Files written whole or not at all, and lines that carry their own checksum."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gpusched.protocol.lines import BadFrame

T = TypeVar("T")
_FILE_LIMIT_BYTES = 4 << 20
_SEAL_BYTES = len(',"crc":"01234567"}')


def private_folder(path: Path) -> Path:
    """Make ``path`` and what is missing above it, 0700; return it."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: temporary file, fsync, rename, fsync of the folder."""
    aside = write_aside(path, data, sync=True)
    try:
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_aside(path: Path, data: bytes, *, sync: bool = False) -> Path:
    """Write ``data`` to a file beside ``path``, to be renamed to it; return its name. Raises OSError, leaving nothing.

    The name is random: two machines that share the folder may have processes with one pid.
    """
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        if sync:
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return aside


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``: one ``write`` may take a part only. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync(path: Path) -> None:
    """fsync a file, or a folder so that the names in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, limit_bytes: int = _FILE_LIMIT_BYTES) -> dict[str, Any] | None:
    """Return the object in this file; None without such a file, or without an object in it."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(limit_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_record(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return the record in this file; None without such a file, or where ``decode`` finds none in it."""
    try:
        with path.open("rb") as file:
            return decode(file.read(_FILE_LIMIT_BYTES))
    except (OSError, BadFrame):
        return None


def sealed(text: bytes) -> bytes:
    """Seal a line of JSON (an object, no newline) with a checksum as the last key: a changed bit is found.

    Its name must not become another key's by one bit: ``c`` became ``s``, and the checksum a step's time.
    """
    return b'%b,"crc":"%08x"}' % (text[:-1], zlib.crc32(text[:-1]))


def is_sound(line: bytes) -> bool:
    """False if the line's checksum says that it was changed; one without a checksum says nothing."""
    if line[-_SEAL_BYTES : -_SEAL_BYTES + 8] != b',"crc":"':
        return True
    return line[-10:-2] == b"%08x" % zlib.crc32(line[:-_SEAL_BYTES])

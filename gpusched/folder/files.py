"""Files written whole or not at all, lines that carry their own checksum, and room kept on the disk (reliability F3).

The reserve is a file of allocated blocks in the experiment's folder. When the journal meets a full disk, a slice of it
is given back to the file system and the commit is tried again at once; slice by slice, because whoever else writes may
take what is free. So the search can go on recording for a while, and can end in good order, on a disk that is full.
When there is room again the reserve is filled again.

Below the low mark (512 MiB, on a small disk 2 % of it) no trial is begun or taken up again, since none could save its
state; those that run go on.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpusched.errors import GpuschedError
from gpusched.protocol import BadFrame
from gpusched.text import show_bytes

T = TypeVar("T")
READ_BYTES = 32 << 20
"""Most of a log that is read at once: as lines it takes several times as much memory."""
_TAIL_BYTES, _LINE_BYTES = 1 << 18, 16_000
_SEAL_BYTES = len(',"crc":"01234567"}')


def absolute_each(paths: str, folder: Path) -> str:
    """Return a list of paths, as ``PYTHONPATH`` has it, with what is relative in it below ``folder``."""
    return os.pathsep.join(os.path.abspath(folder / one) for one in paths.split(os.pathsep))  # noqa: PTH100


def private_folder(path: Path) -> Path:
    """Make ``path`` and what is missing above it, 0700; return it."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def own_folder(base: Path, shared: Path, name: str) -> Path:
    """Return a folder below ``base`` for what this machine alone has of a shared one, made 0700.

    Raises GpuschedError where ``base`` or the folder belongs to another user.
    """
    digest = hashlib.sha256(f"{shared}\0{name}".encode()).hexdigest()[:16]
    own = private_folder(base / f"{name}-{digest}")
    for folder in (base, own):
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
            raise GpuschedError(f"{folder} belongs to somebody else, or others may write there")
    return own


users_umask = -1
"""The umask of the user's shell, for processes whose files may be for others too: scripts and loggers."""


def be_private() -> None:
    """Have all files that this process makes be its user's alone."""
    global users_umask
    users_umask = os.umask(0o077)


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
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in this file; None without such a file, or without an object in it."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_record(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return the record in this file; None without such a file, or where ``decode`` finds none in it."""
    try:
        return decode(path.read_bytes())
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


# ---------------------------------------------------------------- room on the disk


MIB = 1 << 20
SLICE_BYTES = MIB
SLICES = 8
LOW_BYTES = 512 * MIB
LOW_SHARE = 0.02
#: How much more than the low mark must be free before it counts as room again.
CLEAR_FACTOR = 1.25
#: Error numbers of a full disk, or of a used-up quota.
FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """``path`` is the file. Nothing here raises: without a reserve everything works but the end on a full disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with suppress(OSError):
            self.fill()

    @property
    def slices(self) -> int:
        """Number of slices that the reserve holds."""
        try:
            return self._path.stat().st_blocks * 512 // SLICE_BYTES
        except OSError:
            return 0

    def fill(self) -> None:
        """Allocate what is missing. Raises OSError on a full disk; the part that fitted is kept."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SLICES * SLICE_BYTES)
        finally:
            os.close(descriptor)

    def give(self) -> bool:
        """Give one slice back to the file system; False if none is left."""
        left = self.slices
        if left < 1:
            return False
        try:
            os.truncate(self._path, (left - 1) * SLICE_BYTES)
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Room:
    """Free room on the disk of a folder, and the mark below which that is too little; both in bytes."""

    free: int
    low_mark: int

    @classmethod
    def of(cls, folder: Path) -> Room:
        """Read the room that an unprivileged user has. Raises OSError."""
        disk = os.statvfs(folder)
        size = disk.f_blocks * disk.f_frsize
        return cls(disk.f_bavail * disk.f_frsize, min(LOW_BYTES, int(size * LOW_SHARE)))

    @property
    def is_low(self) -> bool:
        return self.free < self.low_mark

    @property
    def is_clear(self) -> bool:
        return self.free >= self.low_mark * CLEAR_FACTOR

    def __str__(self) -> str:
        return f"{self.free / MIB:.0f} MiB free on the disk, fewer than {self.low_mark / MIB:.0f}"


def is_full(folder: Path) -> bool:
    """Tell whether ``folder`` takes no 64 KiB more: SQLite does not say why a write failed."""
    try:
        write_aside(folder / "probe", bytes(1 << 16), sync=True).unlink()
    except OSError as error:
        return error.errno in FULL
    return False


def last_line(path: Path, begins: str = "") -> str:
    """Read the last line of a log that is not blank and begins so; empty if missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = (line.strip()[:_LINE_BYTES] for line in reversed(lines))
    return next((line for line in found if line and line.startswith(begins)), "")


def read_from(path: Path, offset: int, *, is_growing: bool = False) -> tuple[list[str], int]:
    """Return the lines behind ``offset``, and the offset behind them.

    ``is_growing``: a last line without an end is left for the next time. Of more than ``READ_BYTES`` the last are read,
    and a line says what was left out.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0
        left_out = max(0, size - offset - READ_BYTES)
        file.seek(offset + left_out)
        data = file.read(READ_BYTES)
    end = offset + left_out + len(data)
    if is_growing:
        end -= len(data) - (data.rfind(b"\n") + 1)
        data = data[: data.rfind(b"\n") + 1]
    if left_out:
        data = data.partition(b"\n")[2]
    lines = data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else []
    if left_out:
        lines.insert(0, f"[gpusched: {show_bytes(left_out)} before this are in {path}]")
    return lines, end


# ---------------------------------------------------------------- standard output


class _Unfailing(io.FileIO):
    """Standard output on a disk that may refuse: drops what cannot be written; nothing that matters is there alone."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            write_all(self.fileno(), data)
        return len(data)


def write_unfailingly() -> None:
    """Keep ``print`` from ever raising: a disk that refuses a line ends no search, and no trial."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_Unfailing(descriptor, "wb", closefd=False)),
            "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for descriptor in (1, 2)
    )

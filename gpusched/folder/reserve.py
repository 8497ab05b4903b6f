"""Room on the disk: a reserve for the journal, and the mark below which nothing new is begun (reliability F3).

The reserve is a file of allocated blocks in the experiment's folder. When the journal meets a full disk, a slice of it
is given back to the file system and the commit is tried again at once; slice by slice, because whoever else writes may
take what is free. So the search can go on recording for a while, and can end in good order, on a disk that is full.
When there is room again the reserve is filled again.

Below the low mark (512 MiB, on a small disk 2 % of it) no trial is begun or taken up again, since none could save its
state; those that run go on.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpusched.folder.files import write_all

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

    def __init__(self, path: Path, slices: int = SLICES) -> None:
        self._path = path
        self._slices = slices
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
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._slices * SLICE_BYTES)
        finally:
            os.close(descriptor)

    def give(self) -> bool:
        """Give one slice back to the file system; False if there is none left."""
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
    probe = folder / ".probe"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, bytes(1 << 16))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno in FULL
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return False

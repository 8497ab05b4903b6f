"""A cap on what is printed: of each stream the first and the last part stay, the middle gives its blocks back.

    rank ──O_APPEND──▶ rank-0.out        size 1 GiB, on disk 40 MiB:  [first 8 MiB][ hole ][last 24 to 32 MiB]

The shim punches a hole into the file (``fallocate``) while the rank goes on writing to it, never slowed. It looks
every ``LOOK_S``; what is written in between comes on top for a moment. The shim outlives the daemon: a flood is capped
without one. Where a file system cannot punch holes, a stream that is too long is cut back to its first part. The
daemon does the same with its own log and the warm server's.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpusched.text import show_bytes

MIB = 1 << 20
FIRST_BYTES = 8 * MIB
LAST_BYTES = 24 * MIB
STEP_BYTES = 8 * MIB
"""Bytes that a stream may grow beyond first and last part before the hole is made larger."""
LOOK_S = 0.1

_BLOCK = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LogCap:
    """Caps the streams in ``folder``; for a rank's the shim does. Never raises."""

    def __init__(
        self,
        folder: Path,
        *,
        first: int = FIRST_BYTES,
        last: int = LAST_BYTES,
        step: int = STEP_BYTES,
    ) -> None:
        self._folder = folder
        self._first, self._last, self._step = _down(first), last, step
        self._punched: dict[str, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._punch: Callable[[int, int, int], bool] = self._punch_hole
        self._next_look_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return how long until the next look is due."""
        return max(0.0, self._next_look_s - now_s)

    def look(self, now_s: float) -> None:
        """Cap the streams that have grown too long."""
        self._next_look_s = now_s + LOOK_S
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith((".out", ".err", ".log")):
                    self._cap(entry.name, entry.stat().st_size)

    def close(self) -> None:
        """Take a last look; the tree is empty."""
        self.look(0.0)

    # ------------------------------------------------------------ inside

    def _cap(self, name: str, size: int) -> None:
        begin = self._punched.get(name, self._first)
        end = _down(size - self._last)
        if end - begin < self._step:
            return
        try:
            descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            if self._punch(descriptor, begin, end - begin):
                self._punched[name] = end
        finally:
            os.close(descriptor)

    def _punch_hole(self, descriptor: int, begin: int, length: int) -> bool:
        done = self._libc.fallocate(
            descriptor,
            _KEEP_SIZE | _PUNCH_HOLE,
            ctypes.c_longlong(begin),
            ctypes.c_longlong(length),
        )
        if done == 0:
            return True
        if ctypes.get_errno() in _CANNOT:
            self._punch = self._cut_back
            return self._punch(descriptor, begin, length)
        return False

    def _cut_back(self, descriptor: int, begin: int, length: int) -> bool:
        """Cut the file back; the writers append, so they go on behind the rest."""
        os.ftruncate(descriptor, self._first)
        return False


def _down(number: int) -> int:
    return number - number % _BLOCK


# ---------------------------------------------------------------- reading a stream that may have been capped


def read_from(path: Path, offset: int, *, is_growing: bool = False) -> tuple[list[str], int]:
    """Return the lines behind ``offset``, and the offset behind them.

    Where the middle was dropped, a line says how much; a line that the drop has torn is left out. ``is_growing``: a
    last line without an end is left for the next time.
    """
    lines: list[str] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0
        while offset < size:
            begin, end = _next_data(file.fileno(), offset, size)
            if begin > offset:
                lines.append(f"[gpusched: {show_bytes(begin - offset)} of output dropped here]")
            file.seek(begin)
            data = file.read(end - begin)
            if begin > offset:
                data = data.partition(b"\n")[2]
            torn = data[data.rfind(b"\n") + 1 :]
            if torn and (end < size or is_growing):
                data = data.removesuffix(torn)
            if data:
                lines += data.decode("utf-8", "replace").removesuffix("\n").split("\n")
            offset = end
            if torn and is_growing and end == size:
                return lines, end - len(torn)
    return lines, offset


def _next_data(descriptor: int, offset: int, size: int) -> tuple[int, int]:
    """Return the next part that is on disk, from ``offset`` on."""
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return size, size
        return offset, size
    return min(begin, size), min(end, size)

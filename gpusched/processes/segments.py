"""Shared memory that a killed trial left behind in ``/dev/shm`` (reliability F18).

A process that is killed cannot remove its segments, and no one else does: pause by pause the memory fills up, and the
next trial dies of it. The process that ends a tree (its shim; else the server, or the daemon's hunt) removes a
segment when *all* of this holds:

* its name is one that libraries make up (torch, Python's ``shared_memory``, NCCL), not one that a person chose;
* it belongs to our user, and was made after this incarnation began;
* a process of this incarnation made it: its name holds the pid of one that was seen to end, or a process of the tree
  had it mapped when the tree was about to be killed;
* no process that lives has it mapped or open.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpusched.processes.identity import all_pids, descendants, read_each, read_file

SHARED = Path("/dev/shm")  # where shared memory lives, not a place for temporary files
_MADE_UP = re.compile(r"torch_(\d+)_\d+_\d+|psm_[0-9a-f]{8}|nccl-[A-Za-z0-9]{6}")
_MOST_PIDS = 100_000
_MAPS_BYTES = 16 << 20
_SLACK_S = 1.0


class Segments:
    """Shared memory of one incarnation that begins now, or at ``began_s`` of the wall clock. Nothing raises OSError."""

    def __init__(self, began_s: float | None = None) -> None:
        self._began_s = (time.time() if began_s is None else began_s) - _SLACK_S
        self._mapped: set[str] = set()
        self._pids: set[int] = set()

    def reaped(self, pid: int) -> None:
        """Note that a process of the tree has ended."""
        if len(self._pids) < _MOST_PIDS:
            self._pids.add(pid)

    def note(self, root: int) -> None:
        """Note what the processes below ``root``, which are about to be killed, have mapped."""
        self.note_all(lambda: descendants(root))

    def note_all(self, doomed: Callable[[], Iterable[int]]) -> None:
        """Note what processes about to be killed have mapped. ``doomed`` is called only where segments are."""
        there = self._candidates()
        if there:
            self._mapped |= self._in_use(doomed()) & there.keys()

    def remove(self) -> list[str]:
        """Remove what the tree, now empty, has left; return the names."""
        ours = [
            name
            for name, maker in self._candidates().items()
            if name in self._mapped or maker in self._pids
        ]
        if not ours:
            return []
        used = self._in_use(all_pids())
        removed = []
        for name in ours:
            if name not in used:
                with suppress(OSError):
                    (SHARED / name).unlink()
                    removed.append(name)
        return removed

    def _candidates(self) -> dict[str, int | None]:
        """Return made-up names of our user's segments of this time, with the pid in the name."""
        found: dict[str, int | None] = {}
        with suppress(OSError), os.scandir(SHARED) as entries:
            for entry in entries:
                match = _MADE_UP.fullmatch(entry.name)
                if match is None:
                    continue
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if about.st_uid == os.getuid() and about.st_ctime >= self._began_s:
                        found[entry.name] = int(match[1]) if match[1] else None
        return found

    def _in_use(self, pids: Iterable[int]) -> set[str]:
        """Return names of segments that these processes have mapped or open."""
        prefix = os.fsencode(SHARED) + b"/"
        used = read_each(pids, lambda pid: [*_files_mapped(pid), *_files_open(pid)])
        files = (file for files in used.values() for file in files)
        return {os.fsdecode(file[len(prefix) :]) for file in files if file.startswith(prefix)}


def _files_mapped(pid: int) -> Iterator[bytes]:
    for line in (read_file(f"/proc/{pid}/maps", _MAPS_BYTES, whole=True) or b"").splitlines():
        *_, file = line.split(None, 5)
        yield file


def _files_open(pid: int) -> Iterator[bytes]:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                yield os.fsencode(Path(entry.path).readlink())

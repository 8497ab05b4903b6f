"""``shim.json``: the claim to be *the* process tree of an incarnation; and the hunt for what that tree left behind,
processes and shared memory.

It is made with ``link``, so exactly one can ever be made: by the shim, first thing, or by a resumed daemon that found
none and thereby forbids a late shim to start. Later the shim adds who its ranks are.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gpusched.folder.files import read_record, write_aside
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.identity import (
    Identity,
    all_pids,
    boot_id,
    command_of,
    in_initial_namespace,
    is_alive,
    kill_each,
    mark_of,
    marks_of,
    of_incarnation,
    read_each,
    read_file,
    start_time,
)
from gpusched.protocol import decoder, encode


class Claim(Struct, frozen=True):
    """The processes that look after an incarnation. ``shim`` is None where a daemon has forbidden one to start."""

    shim: Identity | None
    boot_id: str
    ranks: tuple[Identity, ...] = ()

    @property
    def is_alive(self) -> bool:
        return self.shim is not None and self.boot_id == boot_id() and is_alive(self.shim)

    @property
    def leaders(self) -> tuple[Identity, ...]:
        """The leaders of the sessions made in this boot."""
        if self.shim is None or self.boot_id != boot_id():
            return ()
        return (self.shim, *self.ranks)


_ROUND_S = 0.02
_decode = decoder(Claim)


def _text(shim: Identity | None, ranks: Iterable[Identity] = ()) -> bytes:
    return encode(Claim(shim, boot_id(), tuple(ranks)))


def make_claim(path: Path, shim: Identity | None) -> bool:
    """Make the claim; return False if there is one already."""
    aside = write_aside(path, _text(shim))
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def add_ranks(path: Path, shim: Identity, ranks: Iterable[Identity]) -> None:
    """Add the ranks to one's own claim."""
    write_aside(path, _text(shim, ranks)).replace(path)


def read_claim(path: Path) -> Claim | None:
    """Read a claim; None if missing or unreadable."""
    return read_record(path, _decode)


# ---------------------------------------------------------------- the hunt


class Hunt:
    """The processes that an incarnation left behind, known even after the incarnation is forgotten elsewhere."""

    def __init__(self, paths: ExperimentPaths, trial: int, incarnation: int) -> None:
        shim = paths.trial(trial).shim(incarnation)
        claim = read_claim(shim)
        self._mark = mark_of(paths.root, trial, incarnation)
        self._leaders = claim.leaders if claim is not None else ()
        self._left: list[Identity] = []
        self._began_s = time.monotonic()
        self._made_s: float | None = None
        with suppress(OSError):
            self._made_s = shim.stat().st_ctime

    @property
    def since_s(self) -> float:
        """Seconds since the hunt began."""
        return time.monotonic() - self._began_s

    def round(self) -> int:
        """Kill every process that is left and return their number; 0: none is left."""
        self._left = of_incarnation(self._mark, self._leaders)
        if self._left:
            kill_each(self._left)
        elif self._made_s is not None:
            sweep_shared_memory(self._made_s)
        return len(self._left)

    def end(self, limit_s: float) -> str:
        """Kill until nothing is left, at most for ``limit_s``; name what is left."""
        while self.round():
            if self.since_s > limit_s:
                return self.describe()
            time.sleep(_ROUND_S)
        return ""

    def describe(self) -> str:
        """Name the processes that are left."""
        left = self._left or of_incarnation(self._mark, self._leaders)
        names = ", ".join(
            f"{who.pid} ({command_of(who.pid)[:60] or 'no name'})" for who in left[:5]
        )
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return f"process{'es' * (len(left) > 1)} {names}{more}" if left else "its process tree"


def incarnations_left(folder: Path) -> set[tuple[int, int]]:
    """Find the incarnations of the experiment in ``folder``, (trial, number), of which processes are left."""
    mine = mark_of(folder, "", "").rstrip(":").encode() + b":"
    found = set()
    for mark in marks_of(all_pids()).values():
        if mark.startswith(mine):
            trial, _, number = mark.removeprefix(mine).partition(b":")
            if trial.isdigit() and number.isdigit():
                found.add((int(trial), int(number)))
    return found


# ---------------------------------------------------------------- shared memory


SHARED = Path("/dev/shm")  # where shared memory lives, not a place for temporary files
_MADE_UP = re.compile(r"torch_(\d+)_\d+_\d+|psm_[0-9a-f]{8}|nccl-[A-Za-z0-9]{6}")
_MAPS_BYTES = 16 << 20
_SLACK_S = 1.0


def sweep_shared_memory(began_s: float) -> list[str]:
    """Remove the shared memory that a tree, begun at ``began_s`` of the wall clock and empty now, has left; name it.

    A process that is killed cannot remove its segments, and no one else does: pause by pause the memory fills up, and
    the next trial dies of it (reliability F18). A segment goes that was made since by our user, has a name that
    libraries make up (torch, Python's ``shared_memory``, NCCL), whose maker is dead where the name tells its pid, and
    that no living process has mapped or open. In a container with the machine's shared memory and pids of its own
    nobody can tell, and nothing goes. Raises no OSError.
    """
    if in_initial_namespace("ipc") and not in_initial_namespace("pid"):
        return []
    left: set[str] = set()
    with suppress(OSError), os.scandir(SHARED) as entries:
        for entry in entries:
            match = _MADE_UP.fullmatch(entry.name)
            if match is None or (match[1] and start_time(int(match[1])) is not None):
                continue
            with suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if about.st_uid == os.getuid() and about.st_ctime >= began_s - _SLACK_S:
                    left.add(entry.name)
    if not left:
        return []
    used = read_each(all_pids(), lambda pid: [*_files_mapped(pid), *_files_open(pid)])
    prefix = os.fsencode(SHARED) + b"/"
    left -= {os.fsdecode(file.removeprefix(prefix)) for files in used.values() for file in files}
    for name in left:
        with suppress(OSError):
            (SHARED / name).unlink()
    return sorted(left)


def _files_mapped(pid: int) -> Iterator[bytes]:
    for line in (read_file(f"/proc/{pid}/maps", _MAPS_BYTES) or b"").splitlines():
        *_, file = line.split(None, 5)
        yield file


def _files_open(pid: int) -> Iterator[bytes]:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                yield os.fsencode(Path(entry.path).readlink())

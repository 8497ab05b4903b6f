"""One daemon an experiment: a kernel lock that dies with its holder (reliability F6), and an epoch that only grows.

The lock file is never deleted, so two daemons can never hold locks on two files of the same name. Its text says who
holds it, for messages only.

A daemon that was stopped (SIGSTOP, a debugger, a suspended virtual machine) holds its lock; but locks can be lost: the
file is removed by hand, the folder is moved, a network file system forgets. So each daemon takes the next number before
it reads anything, in the journal and in a file that shims can read, and whoever meets an older number than the highest
it knows refuses it: the journal in the transaction that would write, shims by closing the line; a launch of an older
epoch does not begin. The older daemon notices and leaves without touching anything (``Fenced``).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.errors import Fenced, GpuschedError, InputError
from gpusched.folder.files import read_json, write_durably

_PROBES_END_S = 0.5
"""Time for which ``take`` tries again: a probe (``lock_note``) shares the lock for an instant."""
_RETRY_S = 0.005
_UNREAD_S = 0.2
"""Time after which a fence that could not be read is tried again."""


def take_lock(path: Path, note: Mapping[str, object]) -> int | None:
    """Take the lock of a file without waiting and write down who has it; None where another process has.

    The descriptor that is returned keeps the lock until it is closed. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    # A full disk: the lock counts, and whoever takes over speaks of the disk.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)
    return descriptor


def lock_note(path: Path) -> dict[str, Any] | None:
    """Return what the process that has the lock has written down, as far as it can be read; None where none has.

    The lock is shared for an instant: probes that meet do not see each other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_json(path) or {}
    except OSError:  # there are no locks here
        return None
    finally:
        os.close(descriptor)
    return None


class Lock:
    """The lock of an experiment's daemon. Held from ``take`` until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Raises InputError, naming the holder, if another process has it."""
        note = {"pid": os.getpid(), "since": time.strftime("%F %T"), "host": socket.gethostname()}
        until_s = time.monotonic() + _PROBES_END_S
        try:
            while (descriptor := take_lock(path, note)) is None:
                if time.monotonic() > until_s:
                    name = path.parent.name
                    raise InputError(
                        f"{name} has a daemon already ({_holder(path)}); 'gpusched watch {name}' shows it, 'gpusched "
                        f"deadline +1h {name}' gives it more time"
                    )
                time.sleep(_RETRY_S)
        except OSError as error:
            if error.filename is not None:  # it cannot even be opened
                raise
            raise InputError(
                f"{path} cannot be locked ({error.strerror}), so two daemons could run one search: mount the folder of "
                f"searches with locks, or choose another with --dir"
            ) from None
        return cls(descriptor)

    def release(self) -> None:
        """Let somebody else have it."""
        os.close(self._descriptor)


def holder_elsewhere(path: Path) -> str:
    """Return the name of another machine whose process has taken the lock; empty for none, and for this machine."""
    host = str((lock_note(path) or {}).get("host", ""))
    return "" if host == socket.gethostname() else host


def _holder(path: Path) -> str:
    note = lock_note(path) or {}
    if "pid" not in note:
        return "its pid is not known"
    return f"pid {note['pid']} on {note.get('host')}, since {note.get('since')}"


_EPOCH = "epoch"
_NOTE_BYTES = 80


def read_fence(fence: Path) -> int:
    """Return the newest incarnation of a trial that must write nothing any more; 0: all may write, or no fence.

    Of the epoch's file, which fences daemons off, the newest. Raises OSError where that is not known: the folder may be
    away, or no descriptor left.
    """
    try:
        found = fence.read_bytes()
    except FileNotFoundError:
        return 0
    if not (found.endswith(b"\n") and found.strip().isdigit()):
        raise OSError(errno.EAGAIN, "the number is being written", str(fence))
    return int(found)


def read_epoch(experiment: Path | str) -> int:
    """Return the epoch of the newest daemon of the experiment in this folder; 0 if unknown."""
    with suppress(OSError):
        return read_fence(Path(experiment, _EPOCH))
    return 0


class Epoch:
    """The number of this daemon. Raises GpuschedError where it cannot be written down."""

    def __init__(self, experiment: Path, known: int) -> None:
        """``known``: the highest number the journal has seen. The experiment's lock is held."""
        self._experiment = experiment
        self.number = max(read_epoch(experiment), known) + 1
        failpoints.reach("epoch.before")
        try:
            write_durably(experiment / _EPOCH, f"{self.number}\n".encode())
        except OSError as error:
            raise GpuschedError(
                f"{experiment / _EPOCH}: cannot be written ({error.strerror}), so no daemon can take over; "
                "make room, or look at the permissions, and try again"
            ) from None
        failpoints.reach("epoch.file")

    def check(self) -> None:
        """Raises Fenced if a newer daemon has begun."""
        newest = read_epoch(self._experiment)
        if newest > self.number:
            raise Fenced(self.number, newest)


def write_note(path: Path, text: str) -> None:
    """Write a line that other machines wait for, in place.

    Each reader opens the file anew: a network file system then asks its server whether the file has changed, which it
    does not for a name that was not there a moment ago. So there is a file before anybody looks.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, f"{text:<{_NOTE_BYTES - 1}}\n".encode(), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Fence:
    """The end of one incarnation's right to write, which another machine may have taken over.

    ``path``: the trial's fence; None on one machine, where the incarnation before is known to be gone.
    """

    def __init__(self, path: Path | None, incarnation: int) -> None:
        self._path = path
        self._incarnation = incarnation

    @property
    def is_raised(self) -> bool:
        """Whether this incarnation must write nothing any more, as far as the fence can be read."""
        try:
            return self._number() >= self._incarnation
        except OSError:
            return False

    def wait(self) -> bool:
        """Return ``is_raised`` as soon as it is known: a fence that cannot be read keeps from writing, and may pass."""
        while True:
            try:
                return self._number() >= self._incarnation
            except OSError:
                time.sleep(_UNREAD_S)

    def check(self) -> None:
        """Raises OSError where the fence is raised, or cannot be read."""
        if self._number() >= self._incarnation:
            raise OSError(errno.ESTALE, "another node has taken this trial over")

    def _number(self) -> int:
        return -1 if self._path is None else read_fence(self._path)


def write_fence(fence: Path, incarnation: int) -> None:
    """Keep this incarnation of a trial, and older ones, from writing. There is a fence from the first launch on."""
    with suppress(OSError):
        if fence.exists() and read_fence(fence) >= incarnation:
            return
    write_note(fence, str(incarnation))

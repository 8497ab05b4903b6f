"""Leases keep a GPU to one experiment: a lock per UUID that dies with its holder.

``flock`` on ``<folder>/<uuid>.lock``: the kernel drops it when the holder ends, however it ends. The file is never
deleted (a second file under the same name would be a second lock), is opened close-on-exec (a child that inherited the
descriptor would keep the lock), and holds the holder's pid and experiment, for messages only.

The folder is private to the user: in one that others can write they could plant links under names that we are about to
open. So two *users* are not kept apart by leases; each sees the other's processes on a GPU and treats it as busy. It is
in the home directory, since ``/run/user/<uid>`` vanishes with the user's last login while a search lives on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpusched.errors import DeviceError
from gpusched.folder.files import private_folder

REMEDY = "Set XDG_STATE_HOME to a folder of your own"


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The experiment that has a lease, as written by itself."""

    pid: int
    experiment: str

    def __str__(self) -> str:
        return f"search {self.experiment} (pid {self.pid})" if self.pid else "another search"


def lease_folder() -> Path:
    """Return the private folder of the leases, made if need be, in ``$XDG_STATE_HOME`` or ``~/.local/state``.

    Raises DeviceError where it cannot be had, as in a container that runs under a user's number alone.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(base) if base.startswith("/") else Path.home() / ".local/state"
    except RuntimeError:
        raise DeviceError(
            f"no home folder of user {os.getuid()} is known, so the GPU leases have none. {REMEDY}"
        ) from None
    folder, problem = home / "gpusched/leases", ""
    try:
        found = private_folder(folder).lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            problem = "belongs to somebody else, or others may write there (chmod go-w)"
    except OSError as error:
        problem = f"cannot be made: {error.strerror or error}"
    if problem:
        raise DeviceError(f"{folder}, the folder of the GPU leases, {problem}. {REMEDY}")
    return folder


class Leases:
    """The leases of one experiment."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self._folder = folder
        self._experiment = experiment
        self._held: dict[str, int] = {}

    def take(self, uuid: str) -> LeaseHolder | None:
        """Take the lease: None if we have it now, else who has. Raises DeviceError where the lock cannot be tried."""
        if uuid in self._held:
            return None
        path = lock_path(self._folder, uuid)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise DeviceError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return holder
            raise DeviceError(
                f"{path} cannot be locked: {error.strerror}. {REMEDY} on a local disk"
            ) from None
        self._held[uuid] = descriptor
        note = {"pid": os.getpid(), "experiment": self._experiment}
        with contextlib.suppress(OSError):  # a full disk: the lock counts, and is ours
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)
        return None

    def close(self) -> None:
        """Drop the locks by closing their files."""
        while self._held:
            os.close(self._held.popitem()[1])


def lock_path(folder: Path, uuid: str) -> Path:
    """Return the lock file of a GPU. The driver gives the UUID, which is not trusted for a file's name."""
    return folder / f"{re.sub(r'[^A-Za-z0-9.-]', '_', uuid)}.lock"


def lease_holder(folder: Path, uuid: str) -> LeaseHolder | None:
    """Return the holder of a GPU's lease, if there is one.

    Shares the lock for an instant; a search that meets that tries again later.
    """
    try:
        descriptor = os.open(lock_path(folder, uuid), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> LeaseHolder:
    """Read what the holder wrote: nothing yet, where the holder is about to write it."""
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return LeaseHolder(int(note["pid"]), str(note["experiment"]))
    except (OSError, ValueError, LookupError, TypeError):
        return LeaseHolder(0, "")

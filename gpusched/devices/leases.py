"""Leases keep a GPU to one experiment: a lock per UUID that dies with its holder.

``flock`` on ``<folder>/<uuid>.lock``: the kernel drops it when the holder ends, however it ends, so there is nothing
stale to break. The file is never deleted (a second file under the same name would be a second lock), is opened
close-on-exec (a child that inherited the descriptor would keep the lock), and holds the holder's pid and experiment,
for messages only: the lock is the truth.

The folder is private to the user (0700, owned by us, no link). A folder that other users can write would let them
plant links and files under names that we are about to open, so two *users* are not kept apart by leases; each sees the
other's processes on a GPU and treats it as busy. There is one folder, in the home directory: of two experiments
that each take the folder they can have, neither would see the other's lock, and ``/run/user/<uid>`` vanishes with the
user's last login while a detached experiment lives on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping
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
        return (
            f"experiment {self.experiment} (pid {self.pid})" if self.pid else "another experiment"
        )


def state_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of what outlives an experiment: ``$XDG_STATE_HOME/gpusched`` or ``~/.local/state/gpusched``.

    Raises DeviceError for a user without a home, as in a container that runs under a number alone.
    """
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".local/state") / "gpusched"
    except RuntimeError:
        raise DeviceError(
            f"no home folder of user {os.getuid()} is known, so the GPU leases have none. {REMEDY}"
        ) from None


def lease_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the private folder of the leases, made if need be. Raises DeviceError where it cannot be had."""
    folder = state_home(environ) / "leases"
    try:
        private_folder(folder)
        problem = _not_private(folder)
    except OSError as error:
        problem = f"cannot be made: {error.strerror or error}"
    if problem:
        raise DeviceError(f"{folder}, the folder of the GPU leases, {problem}. {REMEDY}")
    return folder


def _not_private(folder: Path) -> str:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.getuid():
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & 0o022:
        return "may be written by others (chmod go-w)"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


class Leases:
    """The leases of one experiment."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self._folder = folder
        self._experiment = experiment
        self._held: dict[str, int] = {}

    def take(self, uuid: str, *, patient: bool = False) -> LeaseHolder | None:
        """Take the lease: None if we have it now, else who has. Raises DeviceError where the lock cannot be tried.

        ``patient``: try twice, since ``lease_holder`` touches a lock for an instant.
        """
        if uuid in self._held:
            return None
        descriptor = self._open(uuid)
        try:
            _lock(descriptor, patient)
        except BlockingIOError:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            return holder
        except OSError as error:
            os.close(descriptor)
            raise DeviceError(
                f"{lock_path(self._folder, uuid)} cannot be locked: {error.strerror}. {REMEDY} on a local disk"
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

    def _open(self, uuid: str) -> int:
        path = lock_path(self._folder, uuid)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags, 0o600)
        except OSError as error:
            raise DeviceError(f"{path} cannot be opened: {error.strerror}") from None


def lock_path(folder: Path, uuid: str) -> Path:
    """Return the lock file of a GPU."""
    return folder / f"{file_name(uuid)}.lock"


def file_name(uuid: str) -> str:
    """Return a name for a GPU's files: its UUID comes from the driver, but is not trusted for that."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in uuid)


def _lock(descriptor: int, patient: bool) -> None:
    """Lock the file. Raises BlockingIOError if another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not patient:
            raise
        time.sleep(0.01)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lease_holder(folder: Path, uuid: str) -> LeaseHolder | None:
    """Return the holder of a GPU's lease, if there is one. Looks without taking."""
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

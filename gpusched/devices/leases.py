"""Leases keep a GPU to one experiment: a lock per UUID that dies with its holder.

``flock`` on ``<folder>/<uuid>.lock``: the kernel drops it when the holder ends, however it ends, so there is nothing
stale to break. The file is never deleted (a second file under the same name would be a second lock), is opened
close-on-exec (a child that inherited the descriptor would keep the lock), and holds the holder's pid and experiment,
for messages only: the lock is the truth.

The folder is private to the user (0700, owned by us, no link). A folder that other users can write would let them
plant links and files under names that we are about to open, so two *users* are not kept apart by leases; each sees the
other's processes on a GPU and treats it as busy. First choice is the state folder in the home directory, since
``/run/user/<uid>`` vanishes with the user's last login while a detached experiment lives on, and its lock with it; the
runtime folder is for a home on a network file system, where locks are slow and may not be kept.
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

import psutil

from gpusched.errors import DeviceError
from gpusched.folder.files import private_folder

RUN_USER = Path("/run/user")
NETWORK_FILE_SYSTEMS = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2"),
    *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
}


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
    """Return the folder of what outlives an experiment: ``$XDG_STATE_HOME/gpusched`` or ``~/.local/state/gpusched``."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local/state") / "gpusched"


def lease_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the private folder of the leases, made if need be. Raises DeviceError where there is none to be had."""
    environ = os.environ if environ is None else environ
    home = state_home(environ)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    runtimes = [RUN_USER / str(os.getuid()), *([Path(runtime)] if runtime.startswith("/") else [])]
    candidates = [home, *(folder / "gpusched" for folder in runtimes if folder.is_dir())]
    if _on_network(home):
        candidates = [*candidates[1:], home]
    problems = []
    for candidate in candidates:
        folder = candidate / "leases"
        try:
            private_folder(folder)
            problem = _not_private(folder)
        except OSError as error:
            problem = error.strerror or str(error)
        if not problem:
            return folder
        problems.append(f"  {folder}: {problem}")
    raise DeviceError(
        "no private folder for the GPU leases (set XDG_STATE_HOME to a folder of your own):\n"
        + "\n".join(problems)
    )


def _not_private(folder: Path) -> str:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.getuid():
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & 0o022:
        return "others may write to it (chmod go-w)"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


def _on_network(path: Path) -> bool:
    """Tell whether ``path`` is on a network's file system. Unknown counts as local."""
    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return False
    below = [disk for disk in partitions if path.is_relative_to(disk.mountpoint)]
    # The longest is the nearest; of several at one place the last hides the others.
    nearest = max(reversed(below), key=lambda disk: len(disk.mountpoint), default=None)
    return nearest is not None and nearest.fstype in NETWORK_FILE_SYSTEMS


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
                f"{lock_path(self._folder, uuid)} cannot be locked: {error.strerror}"
            ) from None
        self._held[uuid] = descriptor
        note = json.dumps({"pid": os.getpid(), "experiment": self._experiment}).encode()
        with contextlib.suppress(OSError):  # a full disk: the lock counts, and is ours
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note, 0)
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
    """Read what the holder wrote; the holder may be about to write it."""
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return LeaseHolder(int(note["pid"]), str(note["experiment"]))
    except (OSError, ValueError, KeyError, TypeError):
        return LeaseHolder(0, "")

"""Leases keep a GPU to one experiment: a lock per UUID that dies with its holder.

``flock`` on ``<folder>/<uuid>.lock``: the kernel drops it when the holder ends, however it ends. The file is never
deleted (a second file under the same name would be a second lock), is opened close-on-exec (a child that inherited the
descriptor would keep the lock), and holds the holder's pid and experiment, for messages only.

The folder is private to the user: in one that others can write they could plant links under names that we are about to
open. So two *users* are not kept apart by leases; each sees the other's processes on a GPU and treats it as busy. It is
in the home directory, since ``/run/user/<uid>`` vanishes with the user's last login while a search lives on.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpusched.errors import DeviceError
from gpusched.folder.files import private_folder
from gpusched.folder.lock import lock_note, take_lock

REMEDY = "Set XDG_STATE_HOME to a folder of your own"
BESIDE = Path("/var/tmp")


def lease_folder() -> Path:
    """Return the private folder of the leases, made if need be, in ``$XDG_STATE_HOME`` or ``~/.local/state``.

    A user without a home, as in a container that runs under a number alone, has it in ``BESIDE``. Raises DeviceError
    where it cannot be had.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")  # noqa: PTH111 - as it is where no home is known
    folder = Path(base if base.startswith("/") else f"{home}/.local/state", "gpusched/leases")
    if not base and not os.access(home, os.W_OK) and not os.access(folder.parent, os.F_OK):
        folder = BESIDE / f"gpusched-leases-{os.getuid()}"
    problem = ""
    try:
        found = private_folder(folder).lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            problem = "belongs to somebody else, or others may write there (chmod go-w)"
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
    if problem:
        raise DeviceError(f"{folder}, the folder of the GPU leases, {problem}. {REMEDY}")
    return folder


class Leases:
    """The leases of one experiment."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self._folder = folder
        self._experiment = experiment
        self._held: dict[str, int] = {}

    def take(self, uuid: str) -> str:
        """Take the lease; name who has it, if not we. Raises DeviceError where the lock cannot be tried."""
        if uuid in self._held:
            return ""
        path = self._folder / f"{uuid}.lock"
        try:
            found = take_lock(path, {"pid": os.getpid(), "experiment": self._experiment})
        except OSError as error:
            raise DeviceError(
                f"{path} cannot be locked: {error.strerror}. {REMEDY} on a local disk"
            ) from None
        if found is None:
            return lease_holder(self._folder, uuid) or "another search"
        self._held[uuid] = found
        return ""

    def close(self) -> None:
        """Drop the locks by closing their files."""
        while self._held:
            os.close(self._held.popitem()[1])


def lease_holder(folder: Path, uuid: str) -> str:
    """Name who has a GPU's lease; empty for nobody. A search that meets this probe tries again later."""
    if (note := lock_note(folder / f"{uuid}.lock")) is None:
        return ""
    is_told = {"pid", "experiment"} <= note.keys()
    return f"search {note['experiment']} (pid {note['pid']})" if is_told else "another search"

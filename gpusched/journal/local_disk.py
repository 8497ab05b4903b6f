"""The home of a journal on a disk of the daemon's machine, where several machines use the experiment's folder.

SQLite's write-ahead log needs locks and shared memory that a network file system does not give. So ``journal.db`` is a
link into the home while the search runs, and takes the place of the link at the end: a search that is over is
whole in its folder, for every machine. Until then it is resumed on the machine that has the home.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

from gpusched.errors import DamagedState, GpuschedError, InputError
from gpusched.folder.files import own_folder, sync, write_durably

VARIABLE = "GPUSCHED_JOURNALS"
"""Folder for homes."""


class Home:
    """The home of the journal that is found at ``link``. ``is_wanted``: other machines use the folder as well."""

    def __init__(self, link: Path, *, is_wanted: bool) -> None:
        self._link = link
        self._is_wanted = is_wanted

    def move_in(self) -> None:
        """Have the journal in a home from here on, if one is wanted. Raises InputError where another machine has it."""
        if _home_of(self._link) is not None:
            require_journal(self._link)
        elif self._is_wanted:
            self._settle()

    def _settle(self) -> None:
        """Make a home with what the journal has so far; have the link lead there. Raises GpuschedError."""
        experiment, base = self._link.parent, _homes()
        aside = self._link.with_name(f".{self._link.name}.link")
        remedy = f"name a folder on a disk of this machine with {VARIABLE}"
        try:
            try:
                folder = own_folder(base, experiment, f"{socket.gethostname()}:{experiment.name}")
            except GpuschedError as error:
                raise InputError(f"{error}; {remedy}") from None
            for left in folder.iterdir():
                left.unlink()
            if self._link.exists():
                _backup(self._link, folder / self._link.name)
            # Before the link takes the place of the journal.
            for made in (folder, *folder.parents[:2]):
                sync(made)
            aside.unlink(missing_ok=True)
            aside.symlink_to(folder / self._link.name)
            aside.replace(self._link)
            sync(experiment)
        except sqlite3.Error as error:
            raise DamagedState(f"{self._link}: the journal cannot be copied ({error})") from None
        except OSError as error:
            raise InputError(
                f"{error.filename or base}: the journal cannot be kept there ({error.strerror}); {remedy}"
            ) from None

    def move_out(self) -> None:
        """Bring the journal, which is closed, back into the search's folder. Raises OSError; it stays then."""
        if (home := _home_of(self._link)) is None:
            return
        whole, beside = home / "whole", self._link.with_name(f".{self._link.name}.whole")
        _backup(self._link.resolve(), whole)
        write_durably(beside, whole.read_bytes())
        beside.replace(self._link)
        sync(self._link.parent)
        shutil.rmtree(home, ignore_errors=True)

    def remove(self) -> None:
        """Remove the home of a search that is removed."""
        if (home := _home_of(self._link)) is not None:
            shutil.rmtree(home, ignore_errors=True)


def require_journal(path: Path) -> None:
    """Raise DamagedState where no journal is at ``path``, InputError where its home is not on this machine."""
    if path.is_file():
        return
    home = _home_of(path)
    if home is None:
        raise DamagedState(f"{path}: no journal is here, so this folder is not a search")
    name, host = path.parent.name, home.name.partition(":")[0]
    if host == socket.gethostname():
        raise InputError(f"{name}: its journal was in {home} and is gone")
    raise InputError(
        f"{name}: its journal is on a disk of {host} ({home}): run this command there. "
        "If that disk is lost, so is the search"
    )


def _homes() -> Path:
    """Return the folder of new homes. Raises InputError for one that would depend on who asks."""
    given = Path(os.environ.get(VARIABLE) or "/var/tmp")
    if not given.is_absolute():
        raise InputError(f"{VARIABLE}={given}: name the folder by its whole path, from / on")
    return given / f"gpusched-{os.getuid()}"


def _home_of(link: Path) -> Path | None:
    """Return the home that a link leads to, on whichever machine; None for a file, and for a link of somebody's own."""
    if not link.is_symlink():
        return None
    home = link.readlink().parent
    return home if home.parent.name == f"gpusched-{os.getuid()}" else None


def _backup(source: Path, target: Path) -> None:
    """Write all of a journal, which may be written meanwhile, to one file on this machine's disk."""
    target.unlink(missing_ok=True)
    there = f"{source.absolute().as_uri()}?mode=rw"  # a missing journal is not made anew
    with (
        closing(sqlite3.connect(there, uri=True)) as journal,
        closing(sqlite3.connect(target)) as copy,
    ):
        journal.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # the one file is all
    sync(target)

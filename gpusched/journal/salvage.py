"""Salvage: a damaged journal is replaced by a new one that holds the events before the damage.

Nothing is repaired in place, since nobody knows what else is wrong in a damaged file. The new journal is built beside
the old one, complete and synced, before anything is moved; the damaged one is kept as ``journal.db.damaged`` for a
closer look. A crash at any instant leaves either the damaged journal or a salvage that ``finish`` ends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpusched import failpoints
from gpusched.folder.files import sync_folder

#: The write-ahead log belongs to its database and moves with it; the index of the log is made anew.
_WAL, _SHM = "-wal", "-shm"


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def replace(path: Path, build: Callable[[Path], None]) -> None:
    """Put what ``build`` writes (one complete, closed file) in the place of the journal."""
    unfinished = _beside(path, ".salvaging")
    for leftover in (unfinished, _beside(unfinished, _WAL), _beside(unfinished, _SHM)):
        leftover.unlink(missing_ok=True)
    build(unfinished)
    unfinished.replace(_beside(path, ".salvaged"))
    sync_folder(path.parent)
    failpoints.reach("salvage.built")
    finish(path)


def finish(path: Path) -> None:
    """End a salvage that got as far as a complete new journal; nothing to do where there is none."""
    salvaged = _beside(path, ".salvaged")
    if not salvaged.exists():
        return
    damaged = _damaged_name(path)
    # The log goes first: beside the new journal it would be taken for its own.
    for suffix in (_WAL, ""):
        part = _beside(path, suffix)
        if part.exists():
            part.replace(_beside(damaged, suffix))
    _beside(path, _SHM).unlink(missing_ok=True)
    sync_folder(path.parent)
    failpoints.reach("salvage.aside")
    salvaged.replace(path)
    sync_folder(path.parent)
    failpoints.reach("salvage.after")


def _damaged_name(path: Path) -> Path:
    """``journal.db.damaged``, or the first number behind it that is not taken by another salvage."""
    name, number = _beside(path, ".damaged"), 1
    while name.exists():
        number += 1
        name = _beside(path, f".damaged-{number}")
    return name

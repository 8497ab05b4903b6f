"""The daemon's eye on the disk: the reserve, the low mark, and files that must still be written when it is full."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.core.events import StorageChanged
from gpusched.core.state import State
from gpusched.daemon.garbage import remove, unneeded
from gpusched.errors import DamagedState, InputError
from gpusched.folder.files import write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reserve import FULL, Reserve, Room

#: How often the disk is looked at.
LOOK_EVERY_S = 5.0
MAKE_ROOM_EVERY_S = 60.0


def checksums(paths: ExperimentPaths) -> dict[str, int]:
    """Of the files that a resume begins from; kept in the journal, since a changed bit in them changes the search."""
    files = (paths.resolved, paths.began, paths.worker)
    return {file.name: zlib.crc32(file.read_bytes()) for file in files if file.exists()}


def require_unchanged(paths: ExperimentPaths, meta: Mapping[str, Any]) -> None:
    """Raises DamagedState naming a file that is not as it was when the experiment began."""
    now = checksums(paths)
    for name, crc in meta.get("checksums", {}).items():
        if now.get(name) != crc:
            raise DamagedState(
                f"{paths.root / name}: is damaged or was changed; the experiment cannot go on with it"
            )


class Storage:
    """The disk of one experiment's folder. ``room`` is how much there is; a parameter for tests."""

    def __init__(self, paths: ExperimentPaths, room: Callable[[Path], Room] = Room.of) -> None:
        self.reserve = Reserve(paths.reserve)
        self.next_at = 0.0
        self._make_room_at = 0.0
        #: What is wrong, in words; None: there is room.
        self.warning: str | None = None
        self._paths = paths
        self._room = room

    def require_room(self) -> None:
        """Raises InputError where a new experiment could not save its trials."""
        with suppress(OSError):
            room = self._room(self._paths.root)
            if room.is_low:
                raise InputError(
                    f"{self._paths.root.parent}: {room}; make room, or choose another disk with --dir"
                )

    def look(self, now: float, state: State) -> StorageChanged | None:
        """What has changed since the last look, if it is time for one; where it is low, room is made."""
        if now < self.next_at:
            return None
        self.next_at = now + LOOK_EVERY_S
        try:
            room = self._room(self._paths.root)
        except OSError:
            return None
        if room.is_low and now >= self._make_room_at:
            self._make_room_at = now + MAKE_ROOM_EVERY_S
            self._make_room(state)
        if self.warning is None and room.is_low:
            self.warning = f"{room}: no trial is begun until there is room; those that run go on"
            return StorageChanged(at=now, low=True, what=self.warning)
        if room.is_clear:
            with suppress(OSError):
                self.reserve.fill()
            if self.warning is not None:
                self.warning = None
                return StorageChanged(at=now, low=False, what="there is room on the disk again")
        return None

    def _make_room(self, state: State) -> None:
        """Remove the checkpoints of trials that are over, but the best model's; what takes time runs aside."""
        victims = unneeded(self._paths, state, only_final=True)
        if victims:
            threading.Thread(
                target=remove, args=(victims,), name="gpusched-garbage", daemon=True
            ).start()

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of ours durably, from the reserve where the disk is full. Raises OSError."""
        while True:
            try:
                return write_durably(path, data)
            except OSError as error:
                if error.errno not in FULL or not self.reserve.give():
                    raise

    def release(self) -> None:
        """The experiment is over: its reserve is of no more use."""
        with suppress(OSError):
            self._paths.reserve.unlink(missing_ok=True)

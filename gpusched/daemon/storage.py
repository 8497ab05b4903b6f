"""Room on the disk: the low mark, the reserve, and checkpoints that nothing needs any more.

Needed are: of a trial that may continue, its two newest committed checkpoints (one where the disk is low); all of a
trial whose processes still live, daemon or not; and as long as ``best/`` does not hold the best model, the checkpoints
of the trial that does. Low is a disk without room for another checkpoint as large as the largest so far. Where nothing
else is left to remove, the worse half of the paused trials stops. A folder is renamed before it is removed, so that a
crash leaves nothing half-deleted under its old name (reliability F26).
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpusched.core.events import StorageChanged
from gpusched.core.state import State
from gpusched.errors import InputError
from gpusched.folder.files import Reserve, Room, read_json
from gpusched.folder.lock import Fence
from gpusched.folder.paths import HELD, ExperimentPaths
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import boot_id, start_thread

#: How often the disk is looked at.
LOOK_EVERY_S = 2.5
KEEP = 2
TRASH = ".trash-"


@dataclass(frozen=True, slots=True)
class Needs:
    """Trials that are over, and trial and step of the best model: which checkpoints are needed."""

    is_final: Mapping[int, bool]
    best: tuple[int, int] | None

    @classmethod
    def of(cls, state: State) -> Needs:
        best = (state.best.trial, state.best.step) if state.best is not None else None
        # A trial that was cut only for want of time continues if the deadline is moved.
        over = {
            number: trial.is_final and (state.finished or trial.cut_atoms is None)
            for number, trial in state.trials.items()
        }
        return cls(over, best)


def _in_a_thread(work: Callable[[], None]) -> None:
    start_thread(threading.Thread(target=work, name="gpusched-storage", daemon=True))


class Storage:
    """The disk of one search's folder. It is looked at beside the loop, as a disk may take its time.

    What the disk is like is compared with what the search believes, at each look: nothing told before is remembered
    here.
    """

    def __init__(self, paths: ExperimentPaths) -> None:
        self.reserve = Reserve(paths.reserve)
        self.next_at = 0.0
        #: The trouble in words; None: there is room.
        self.warning: str | None = None
        self._paths = paths
        self._room = Room.of
        self._beside = _in_a_thread
        self._is_looking = self._was_refused = False
        self._seen: Room | None = None

    def require_room(self) -> None:
        """Raise InputError where a new search could not save its trials."""
        with suppress(OSError):
            room = self._room(self._paths.root)
            if room.is_low:
                raise InputError(
                    f"{self._paths.root.parent}: {room}; make room ('gpusched gc' of an older search may), or choose "
                    "another disk with --dir"
                )

    def refused(self) -> None:
        """Note that a checkpoint could not be saved: of a quota that is used up ``statvfs`` tells nothing."""
        self._was_refused = True

    def look(self, now: float, state: State) -> StorageChanged | None:
        """Return what the last look found to be otherwise than the search believes; else begin another if it is due."""
        if now < self.next_at:
            return None
        self.next_at = now + LOOK_EVERY_S
        change = self._change(now, state)
        if change is None and not self._is_looking:
            self._is_looking = True
            needs, save_bytes = Needs.of(state), state.largest_save_bytes
            self._beside(lambda: self._look(needs, save_bytes))
        return change

    def _change(self, now: float, state: State) -> StorageChanged | None:
        room, self._seen = self._seen, None
        if room is None:
            return None
        if room.is_low:
            how = "'gpusched gc' of an older search makes some; trials that run continue"
            self.warning = f"{room}: no trial is begun until there is room, and {how}"
            if not state.storage_low:
                return StorageChanged(at=now, low=True, what=self.warning)
        elif room.is_clear:
            self.warning = None
            if state.storage_low:
                return StorageChanged(at=now, low=False, what="there is room on the disk again")
        return None

    def _measure(self, save_bytes: int) -> Room:
        room = self._room(self._paths.root)
        return replace(room, low_mark=max(room.low_mark, save_bytes))

    def _look(self, needs: Needs, save_bytes: int) -> None:
        """Beside the loop: read the room, and make some where it is low, or where a checkpoint was refused."""
        was_refused, self._was_refused = self._was_refused, False
        try:
            room = self._measure(save_bytes)
            if room.is_low or was_refused:
                count, _ = remove(unneeded(self._paths, needs, is_low=True))
                room = self._measure(save_bytes)
                if was_refused and not count:  # as a quota is used up
                    room = replace(room, free=0)
            self._seen = room
            if room.is_clear:
                self.reserve.fill()
        except OSError:  # without a word of the disk, or on one that takes no reserve, all goes on
            pass
        finally:
            self._is_looking = False

    def release(self) -> None:
        """Give up the reserve: the search is over."""
        with suppress(OSError):
            self._paths.reserve.unlink(missing_ok=True)


# ---------------------------------------------------------------- checkpoints


def unneeded(paths: ExperimentPaths, needs: Needs, is_low: bool = False) -> list[Path]:
    """List checkpoint folders that neither the best model nor a resume needs; ``is_low``: the disk has little room."""
    found: list[Path] = []
    for number in paths.trial_numbers:
        is_final = needs.is_final.get(number)
        if is_final is None:
            continue  # the journal knows nothing of it
        of_trial = paths.trial(number)
        try:
            there = sorted(entry for entry in of_trial.checkpoints.iterdir() if entry.is_dir())
        except OSError:
            continue
        kept = 0 if is_final else 1 if is_low else KEEP
        kept = KEEP if _holds_the_best(paths, needs, number) else kept
        keep = of_trial.committed_checkpoints()[-kept:] if kept else []
        # A copy that a killed rank has left may be the best model: a resume commits it.
        keep += of_trial.checkpoints.glob(f"{HELD}*") if not is_final else ()
        victims = [entry for entry in there if entry not in keep]
        if victims and not _is_alive(paths, number):
            found += victims
    return found


def remove(folders: Iterable[Path]) -> tuple[int, int]:
    """Remove these and return their number and the bytes that gives; what cannot be removed stays."""
    count = size_bytes = 0
    for folder in folders:
        size, trash = size_of(folder), folder
        with suppress(OSError):
            if not folder.name.startswith(TRASH):
                trash = folder.with_name(f"{TRASH}{folder.name.lstrip('.')}")
                shutil.rmtree(trash, ignore_errors=True)
                folder.rename(trash)
            shutil.rmtree(trash)
            count, size_bytes = count + 1, size_bytes + size
    return count, size_bytes


def size_of(folder: Path) -> int:
    """Return the bytes that removing a folder gives back: those of files that have no other name."""
    total = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_nlink == 1:
                total += path.stat().st_size
    return total


def _holds_the_best(paths: ExperimentPaths, needs: Needs, number: int) -> bool:
    """Tell whether the best model is this trial's and is not in ``best/`` yet."""
    if needs.best is None or needs.best[0] != number:
        return False
    kept = read_json(paths.best / "metric.json")
    return kept is None or (kept.get("trial"), kept.get("step")) != needs.best


def _is_alive(paths: ExperimentPaths, number: int) -> bool:
    """Tell whether a trial still has processes, perhaps without any daemon, or on another node: there until fenced."""
    trial = paths.trial(number)
    is_on_cluster = trial.fence.exists()
    for incarnation in trial.incarnations:
        claim = read_claim(trial.shim(incarnation))
        if claim is None or claim.shim is None or trial.exit(incarnation).exists():
            continue
        is_elsewhere = is_on_cluster and claim.boot_id != boot_id()
        if claim.is_alive or (is_elsewhere and not Fence(trial.fence, incarnation).is_raised):
            return True
    return False

"""Saving and restoring a trial together: what all ranks know, written by rank 0, committed once.

``state.pt`` holds what is the same on every rank, ``rank-k.pt`` what is not (random number generators). The other
ranks' parts travel to rank 0, so that one process alone touches the disk. With nothing tracked and torch not loaded a
checkpoint is its manifest alone.

A trial that trains on does not wait for the disk: rank 0 copies the state (``handover.py``) and a thread commits the
copy, while every rank goes on with its step; what becomes of it is told to the daemon by that thread. One that leaves
waits, and one answer, yes or no, comes back to all ranks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.folder.lock import Fence
from gpusched.worker import rng
from gpusched.worker.channel import Channel
from gpusched.worker.checkpoint import (
    OPEN_FOLDER,
    Checkpoint,
    CheckpointStore,
    Restorable,
    Source,
)
from gpusched.worker.endings import say
from gpusched.worker.group import Call, Group
from gpusched.worker.handover import Outbox, Snapshot, memory_name

_ROOM_WORTH_MAKING_BYTES = 8 << 20
_NICE = 10

SAVE_SHARE = 0.03
"""Share of a plain run's time that saving may cost; under gpusched the daemon's rules say when to save."""


class Saver:
    """Checkpoints of this trial, in step on all ranks. Only rank 0 touches the folder and the channel."""

    def __init__(
        self,
        group: Group,
        folder: Path,
        keep: int,
        channel: Channel | None,
        seed: int,
        trial: int = 0,
        fence: Fence | None = None,
    ) -> None:
        self._group = group
        self._folder = folder
        self._store = CheckpointStore(folder, keep, fence) if group.rank == 0 else None
        self._channel = channel
        self._seed = seed
        self._trial = trial
        self._snapshot = Snapshot(memory_name(trial))
        self._outbox = Outbox(trial)
        self._writing: threading.Thread | None = None
        self._began_s = time.monotonic()
        self._last_save_s = 0.0
        #: The last step that is committed; on rank 0 it may come to that while training goes on.
        self.saved_step: int | None = None
        #: The last step of which a save was begun, the same on all ranks.
        self.begun_step: int | None = None

    def newest(self) -> Checkpoint | None:
        """Return the checkpoint to go on from; rank 0 looks it up and verifies it, the others follow."""
        found = self._store.newest() if self._store is not None else None
        said = (-1.0, 0.0, 0.0, 0.0, 0.0)
        if found is not None:
            facts = found.facts
            parts = ("state.pt" in found.files, found.script_folder is not None)
            said = (found.step, facts["iteration"], facts["world_size"], *parts)
        step, iteration, ranks, has_state, has_folder = map(
            int, self._group.share(Call.RESTORE, *said)
        )
        if step < 0 or found is not None:
            return found
        facts = {"iteration": iteration, "world_size": ranks, "folder": bool(has_folder)}
        folder = self._folder / f"step-{step:08d}"
        return Checkpoint(folder, step, facts, _file_names(ranks) if has_state else ())

    def make_room(self, size: Callable[[], int]) -> None:
        """Have memory ready for a state of about ``size()`` bytes, beside training; once is enough."""
        if self._store is None or self._snapshot.file >= 0:
            return
        wanted = size()
        if wanted >= _ROOM_WORTH_MAKING_BYTES:
            self.wait()
            work = partial(self._snapshot.make_room, wanted)
            self._writing = threading.Thread(target=work, name="gpusched-room")
            self._writing.start()

    def save(
        self,
        step: int,
        iteration: int,
        capture: Callable[[], dict[str, Any]],
        *,
        hand_over: bool = False,
        script_folder: Path | None = None,
    ) -> bool:
        """Commit a checkpoint of this step; False, said on stderr, if the disk refuses. All ranks call it.

        Args:
            step: Steps finished.
            iteration: Iterations of ``trial.steps()`` finished.
            capture: Returns the state that is the same on all ranks.
            hand_over: Let the next incarnation have the state before it is committed.
            script_folder: Of ``open_folder``; becomes part of the checkpoint.

        Raises:
            TypeError: A tracked object holds something that a checkpoint cannot hold.
        """
        began = time.monotonic()
        files, facts = self._collect(step, iteration, capture)
        if hand_over:
            self._hand_over(step, iteration, files)
        size = self._write(step, files, facts, script_folder)
        size = int(self._group.share(Call.SAVE, size)[0])
        if size < 0:
            return False
        self._committed(step, began, size)
        return True

    def open_folder(self) -> Path | None:
        """Return an empty folder for files of the script's own, the same on every rank; None if the disk refuses."""
        self.wait()
        folder: Path | None = self._folder / OPEN_FOLDER
        if self._store is not None:
            try:
                folder = self._store.open_folder()
            except OSError as error:
                self._complain("files of the script's own", error)
                folder = None
        return folder if self._group.all_true(Call.FILES, folder is not None) else None

    def save_behind(
        self,
        step: int,
        iteration: int,
        capture: Callable[[], dict[str, Any]],
        script_folder: Path | None = None,
    ) -> None:
        """Begin a checkpoint of this step; it is committed while training goes on. All ranks call it.

        Raises:
            TypeError: A tracked object holds something that a checkpoint cannot hold.
        """
        began = time.monotonic()
        files, facts = self._collect(step, iteration, capture)
        if self._store is None:
            return
        if not all(isinstance(source, memoryview) for source in files.values()):
            size = self._write(step, files, facts, script_folder)  # no room for a copy
            if size >= 0:
                self._committed(step, began, size)
            return

        def write() -> None:
            _let_training_go_first()
            size = self._write(step, files, facts, script_folder)
            if size >= 0:
                self._committed(step, began, size)

        self._writing = threading.Thread(target=write, name="gpusched-save")
        self._writing.start()

    @property
    def is_writing(self) -> bool:
        """Whether the save that was begun last is still on its way to the disk. Asked of rank 0."""
        return self._writing is not None and self._writing.is_alive()

    def is_worth_saving(self) -> bool:
        """Whether saves have cost less than ``SAVE_SHARE`` of the time so far. Asked of rank 0 where no daemon says."""
        waited_s = time.monotonic() - self._began_s
        return not self.is_writing and self._last_save_s <= SAVE_SHARE * waited_s

    def wait(self) -> None:
        """Wait until what ``save_behind`` began is committed, or could not be."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def settle(self) -> bool:
        """Wait for the save that was begun last; whether it is committed, on all ranks. All ranks call it."""
        self.wait()
        return bool(self._group.share(Call.SAVE, self.saved_step == self.begun_step)[0])

    def work_alone(self) -> None:
        """Save without the other ranks from now on: the script has taken the process groups down."""
        self._group = Group(self._group.rank, 1)

    def restore_rng(self, checkpoint: Restorable) -> None:
        """Put this rank's generators back; a rank that did not exist gets a stream of its own."""
        if f"rank-{self._group.rank}.pt" in checkpoint.files:
            rng.restore(checkpoint.load(f"rank-{self._group.rank}.pt"))
        else:
            rng.diverge(self._seed, self._group.rank, checkpoint.step)

    def _collect(
        self, step: int, iteration: int, capture: Callable[[], dict[str, Any]]
    ) -> tuple[dict[str, Source], dict[str, Any]]:
        """Return what is to be written, on rank 0: a copy, which does not change as training goes on."""
        self.wait()
        self.begun_step = step
        self._began_s = time.monotonic()
        torch = sys.modules.get("torch")
        state, mine = {}, b""
        if torch is not None:
            from gpusched.worker.state import packed

            state, mine = capture(), packed(rng.capture())
        parts = self._group.gather_bytes(Call.SAVE, mine)
        files: dict[str, Source] = {}
        if self._store is not None and torch is not None:
            contents = (self._copy(state), *(memoryview(part) for part in parts))
            files = dict(zip(_file_names(len(parts)), contents, strict=True))
        facts = {
            "iteration": iteration,
            "world_size": len(parts),
            "torch": str(torch.__version__) if torch is not None else None,
        }
        return files, facts

    def _copy(self, state: dict[str, Any]) -> Source:
        try:
            return self._snapshot.take(state)
        except MemoryError:
            self._snapshot = Snapshot(memory_name(self._trial))
            import torch

            return partial(torch.save, state)

    def _hand_over(self, step: int, iteration: int, files: Mapping[str, Source]) -> None:
        """Tell of the copy in memory, where there is one."""
        contents = list(files.values())
        views = [content for content in contents if isinstance(content, memoryview)]
        if self._channel is None or not contents or len(views) < len(contents):
            return
        parts = [bytes(part) for part in views[1:]]
        parcel = self._outbox.pack(step, self._snapshot.file, iteration, parts)
        if parcel is not None:
            self._channel.handed(parcel)
            failpoints.reach("handover.told")

    def _committed(self, step: int, began: float, size: int) -> None:
        self.saved_step = step
        self._last_save_s = time.monotonic() - began
        if self._channel is not None:
            self._channel.saved(step, self._last_save_s, size)

    def _write(
        self,
        step: int,
        files: Mapping[str, Source],
        facts: Mapping[str, Any],
        script_folder: Path | None = None,
    ) -> int:
        """Return bytes written; -1 where the disk refuses, or on a rank that does not write."""
        if self._store is None:
            return -1
        try:
            return self._store.write(step, files, facts, script_folder)
        except OSError as error:
            self._complain(f"step {step}", error)
            return -1

    def _complain(self, what: str, error: OSError) -> None:
        why = error.strerror or error
        say(f"no checkpoint of {what}: {why} ({self._folder}); training goes on")


def _let_training_go_first() -> None:
    """Give this thread, and those it starts, what the training leaves of the rank's core."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _file_names(ranks: int) -> tuple[str, ...]:
    return ("state.pt", *(f"rank-{rank}.pt" for rank in range(ranks)))

"""Saving and restoring a trial together: what all ranks know, written by rank 0, committed once.

``state.pt`` holds what is the same on every rank, ``rank-k.pt`` what is not (random number generators). The other
ranks' parts travel to rank 0, so that one process alone touches the disk. With nothing tracked and torch not loaded a
checkpoint is its manifest alone.

A trial that trains on does not wait for the disk: rank 0 copies the state (``Snapshot``) and a thread writes the copy,
while every rank continues with its step; what becomes of it is told to the daemon by that thread. One that leaves
waits, and one answer, yes or no, comes back to all ranks.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.folder.files import FULL
from gpusched.folder.lock import Fence
from gpusched.protocol import Remark
from gpusched.worker import rng
from gpusched.worker.channel import Channel
from gpusched.worker.checkpoint import OPEN_FOLDER, Checkpoint, CheckpointStore, verify
from gpusched.worker.endings import say
from gpusched.worker.group import Call, Group

Where = tuple[int, int]
"""Steps reported, and iterations of ``trial.steps()`` finished."""

HOLD_S = 10.0
"""Least time between two commits of held copies: by then another trial may hold a better one."""

FILES_SHARE = 0.1
"""Share of a trial's time for which its script may write files of models that are the best so far, beyond the daemon's
rules."""

SAVE_SHARE = 0.03
"""Share of a trial's time for which it may stand still so that held copies are made."""


@dataclass(slots=True)
class _Draft:
    """A checkpoint that is to be committed; ``files`` are copies, which do not change as training continues."""

    step: int
    script_folder: Path | None
    facts: dict[str, Any]
    files: dict[str, memoryview | bytes] = field(default_factory=dict)
    size_bytes: int = 0


class Snapshot:
    """Memory that holds what ``torch.save`` would write, kept from one snapshot to the next.

    Taken while training stands still, so that writing it to disk need not be. Fresh memory costs several times what the
    copying does, so rank 0 grows by the size of the state at its first save.
    """

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._view = memoryview(b"")

    def take(self, state: Any) -> memoryview:
        """Serialise ``state``; the bytes are good until the next call."""
        import torch
        from torch.utils.serialization import config

        self._view.release()
        self._buffer.seek(0)
        how = {
            # The manifest's SHA-256 covers every byte; the archive's own sums would cost as much as the copying.
            "save.compute_crc32": False,
            # From a GPU through pinned memory: 12.6 GB/s, not 1.4 (pytorch/pytorch#138018, #143342).
            "save.use_pinned_memory_for_d2h": torch.cuda.is_initialized(),
        }
        with config.patch(how):  # type: ignore[attr-defined]
            torch.save(state, self._buffer)
        self._buffer.truncate()
        self._view = self._buffer.getbuffer()
        return self._view


class Saver:
    """Checkpoints of this trial, in step on all ranks. Only rank 0 touches the folder and the channel.

    ``capture`` returns the state that is the same on all ranks.
    """

    def __init__(
        self,
        group: Group,
        folder: Path,
        channel: Channel | None,
        seed: int,
        capture: Callable[[], dict[str, Any]],
        fence: Fence | None = None,
    ) -> None:
        self._group = group
        self._folder = folder
        self._store = CheckpointStore(folder, fence=fence) if group.rank == 0 else None
        self._channel = channel
        self._seed = seed
        self._capture = capture
        self._snapshot = Snapshot()
        self._writing: threading.Thread | None = None
        self._began_s = time.monotonic()
        self._last_save_s = self._copy_s = 0.0
        self._saved_at_s = self._began_s
        #: A copy that is still to be committed, and the thread that waits until it may be.
        self._held: _Draft | None = None
        self._due: threading.Timer | None = None
        self._lock = threading.Lock()
        #: The last step that is committed; on rank 0 it may come to that while training continues.
        self.saved_step: int | None = None
        #: The last step of which a save was begun, the same on all ranks.
        self.begun_step: int | None = None

    def newest(self) -> Checkpoint | None:
        """Return the checkpoint to continue from; rank 0 looks it up and verifies it, the others follow."""
        found = self._store.newest() if self._store is not None else None
        step = int(self._group.share(Call.RESTORE, -1 if found is None else found.step)[0])
        if step < 0 or found is not None:
            return found
        return verify(self._folder / f"step-{step:08d}", step, hashed=False)

    def save(self, where: Where) -> bool:
        """Commit a checkpoint of this step; False, said on stderr, if the disk refuses. All ranks call it.

        Raises:
            TypeError: A tracked object holds something that a checkpoint cannot hold.
        """
        self.finish()
        with self._lock:  # for which ``finish`` waits, where a signal ends this process meanwhile
            draft = self._draft(where, None)
            is_committed = bool(self._group.share(Call.SAVE, self._commit(draft))[0])
            if is_committed:
                self.saved_step = draft.step
            return is_committed

    def open_folder(self) -> Path | None:
        """Return an empty folder for files of the script's own, the same on every rank; None if the disk refuses."""
        self.finish()  # a commit clears away what it does not know
        folder: Path | None = self._folder / OPEN_FOLDER
        if self._store is not None:
            try:
                folder = self._store.open_folder()
            except OSError as error:
                self._complain("files of the script's own", error)
                folder = None
        return folder if self._group.share(Call.FILES, folder is not None)[0] else None

    def close_folder(self, folder: Path, *, is_all: bool) -> None:
        """Wait until every rank has written its files. All ranks call it.

        Raises:
            RuntimeError: There are none, and they are all that the checkpoint would hold (``is_all``).
        """
        written = self._group.exchange(Call.FILES, any(folder.iterdir()))
        if is_all and not any(map(any, written)):
            raise RuntimeError(
                "nothing was written into the folder of trial.checkpoint_dir(), so this checkpoint would hold no "
                "model: save into that folder (accelerator.save_state(folder), without automatic_checkpoint_naming)"
            )

    def save_behind(self, where: Where, script_folder: Path | None = None) -> None:
        """Begin a checkpoint of this step; it is committed while training continues. All ranks call it.

        Raises:
            TypeError: A tracked object holds something that a checkpoint cannot hold.
        """
        self.finish()
        draft = self._draft(where, script_folder)
        if self._store is not None:
            self._begin(partial(self._commit, draft))

    def hold(self, where: Where) -> None:
        """Put a copy of this step aside; commit it as soon as saves may cost time again. All ranks call it.

        It takes the place of an earlier one. ``finish`` commits it before that, where the trial ends or saves a later
        step; where this process is killed, the daemon or the next launch does.
        """
        self._held = None
        self.finish()
        draft = self._draft(where, None)
        if self._store is None:
            return
        self._begin(partial(self._write, draft, held=True))
        self._held = draft  # only now: the timer of an earlier copy may be in ``finish``
        pause_s = max(HOLD_S, self._last_save_s / SAVE_SHARE)
        due_s = self._saved_at_s + pause_s - time.monotonic()
        self._due = threading.Timer(max(0.0, due_s), self.finish)
        self._due.daemon = True
        self._due.start()

    def may_hold(self) -> bool:
        """Whether a copy costs little enough, and the disk has the one before. Asked of rank 0."""
        since_s = time.monotonic() - self._began_s
        return self._copy_s <= SAVE_SHARE * since_s and not self.is_writing

    def finish(self) -> None:
        """Commit what is held or on its way to the disk; from any thread of rank 0."""
        with self._lock:
            self.wait()
            draft, self._held = self._held, None
            if draft is not None:
                self._commit(draft)
        if self._due is not None:
            self._due.cancel()

    def _begin(self, work: Callable[[], object]) -> None:
        self._writing = threading.Thread(target=work, name="gpusched-save")
        self._writing.start()

    @property
    def is_writing(self) -> bool:
        """Whether the save that was begun last is still on its way to the disk. Asked of rank 0."""
        return self._lock.locked() or (self._writing is not None and self._writing.is_alive())

    def wait(self) -> None:
        """Wait until what was begun last is written, or could not be."""
        if (writing := self._writing) is not None:
            writing.join()

    def settle(self) -> bool:
        """Wait for the save that was begun last; whether it is committed, on all ranks. All ranks call it."""
        self.finish()
        return bool(self._group.share(Call.SAVE, self.saved_step == self.begun_step)[0])

    def work_alone(self) -> None:
        """Save without the other ranks from now on: the process groups are down, or another rank does not come."""
        self._group = Group(self._group.rank, 1)

    def restore_rng(self, checkpoint: Checkpoint) -> None:
        """Put this rank's generators back; a rank that did not exist gets a stream of its own."""
        if f"rank-{self._group.rank}.pt" in checkpoint.files:
            from gpusched.worker.state import unportable

            rng.put_back(unportable(checkpoint.load(f"rank-{self._group.rank}.pt")))
        else:
            rng.diverge(self._seed, self._group.rank, checkpoint.step)

    def _draft(self, where: Where, script_folder: Path | None) -> _Draft:
        """Collect what is to be written, on rank 0. The caller has called ``finish``."""
        step, iteration = where
        self.begun_step = step
        self._began_s = time.monotonic()
        has_torch = "torch" in sys.modules
        state, mine = {}, b""
        if has_torch:
            from gpusched.worker.state import portable

            generators = portable(rng.states(), "the states of random number generators")
            state, mine = self._capture(), bytes(Snapshot().take(generators))
        parts = self._group.gather_bytes(Call.SAVE, mine)
        draft = _Draft(step, script_folder, {"iteration": iteration, "world_size": len(parts)})
        if self._store is not None and has_torch:
            of_ranks = {f"rank-{rank}.pt": part for rank, part in enumerate(parts)}
            draft.files = {"state.pt": self._snapshot.take(state), **of_ranks}
        self._copy_s = time.monotonic() - self._began_s
        return draft

    def _write(self, draft: _Draft, *, held: bool = False) -> bool:
        """Write a checkpoint (``held``: put it aside), or commit one put aside before. False where the disk refuses."""
        if self._store is None:
            return False
        try:
            if draft.size_bytes:
                self._store.commit_held(draft.step)
            else:
                draft.size_bytes = self._store.write(
                    draft.step, draft.files, draft.facts, draft.script_folder, held=held
                )
        except OSError as error:
            self._complain(f"step {draft.step}", error)
            return False
        return True

    def _commit(self, draft: _Draft) -> bool:
        """Commit a checkpoint and tell of it. False where that fails, or on a rank that does not write."""
        began_s = time.monotonic()
        if not self._write(draft):
            return False
        self.saved_step = draft.step
        self._saved_at_s = time.monotonic()
        self._last_save_s = self._copy_s + self._saved_at_s - began_s
        if self._channel is not None:
            self._channel.saved(draft.step, self._last_save_s, draft.size_bytes)
        return True

    def _complain(self, what: str, error: OSError) -> None:
        why = error.strerror or error
        say(f"no checkpoint of {what}: {why} ({self._folder}); training continues")
        if self._channel is not None:  # without the step, so that the search is told once
            text = f"a checkpoint cannot be saved ({why}); training continues"
            self._channel.tell(Remark(text, full=error.errno in FULL))

"""Saving and restoring a trial together: what all ranks know, written by rank 0, committed once.

``state.pt`` holds what is the same on every rank, ``rank-k.pt`` what is not (random number generators). The other
ranks' parts travel to rank 0, so that one process alone touches the disk and one answer, yes or no, comes back to
all. With nothing tracked and torch not loaded a checkpoint is its manifest alone.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from gpusched.worker import rng
from gpusched.worker.channel import Channel
from gpusched.worker.checkpoint import Checkpoint, CheckpointStore, HashingFile, Writer
from gpusched.worker.group import Call, Group
from gpusched.worker.say import say


class Saver:
    """Checkpoints of this trial, in step on all ranks. Only rank 0 touches the folder and the channel."""

    def __init__(
        self, group: Group, folder: Path, keep: int, channel: Channel | None, seed: int
    ) -> None:
        self._group = group
        self._folder = folder
        self._store = CheckpointStore(folder, keep) if group.rank == 0 else None
        self._channel = channel
        self._seed = seed
        self.saved_step: int | None = None

    def newest(self) -> Checkpoint | None:
        """The checkpoint to go on from; rank 0 looks it up and verifies it, the others follow."""
        found = self._store.newest() if self._store is not None else None
        said = (-1.0, 0.0, 0.0, 0.0)
        if found is not None:
            facts = found.facts
            said = (found.step, facts["iteration"], facts["world_size"], len(found.files))
        step, iteration, ranks, files = map(int, self._group.share(Call.RESTORE, *said))
        if step < 0 or found is not None:
            return found
        facts = {"iteration": iteration, "world_size": ranks}
        folder = self._folder / f"step-{step:08d}"
        return Checkpoint(folder, step, facts, _file_names(ranks) if files else ())

    def save(self, step: int, iteration: int, capture: Callable[[], dict[str, Any]]) -> bool:
        """Commit a checkpoint of this step; False, said on stderr, if the disk refuses. All ranks call it.

        Raises:
            TypeError: A tracked object holds something that a checkpoint cannot hold.
        """
        began = time.monotonic()
        torch = sys.modules.get("torch")
        state = capture() if torch is not None else {}
        parts = self._group.gather_bytes(Call.SAVE, _pack(rng.capture()) if torch else b"")
        size = -1
        if self._store is not None:
            files: dict[str, Writer] = {}
            if torch is not None:
                writers = (_tensors(state), *map(_raw, parts))
                files = dict(zip(_file_names(len(parts)), writers, strict=True))
            facts = {
                "iteration": iteration,
                "world_size": len(parts),
                "torch": str(torch.__version__) if torch is not None else None,
            }
            size = self._write(step, files, facts)
        size = int(self._group.share(Call.SAVE, size)[0])
        if size < 0:
            return False
        self.saved_step = step
        if self._channel is not None:
            self._channel.saved(step, time.monotonic() - began, size)
        return True

    def restore_rng(self, checkpoint: Checkpoint) -> None:
        """Put this rank's generators back; a rank that did not exist gets a stream of its own."""
        if f"rank-{self._group.rank}.pt" in checkpoint.files:
            rng.restore(checkpoint.load(f"rank-{self._group.rank}.pt"))
        else:
            rng.diverge(self._seed, self._group.rank, checkpoint.step)

    def _write(self, step: int, files: dict[str, Writer], facts: dict[str, Any]) -> int:
        assert self._store is not None
        try:
            return self._store.write(step, files, facts)
        except OSError as error:
            say(
                f"no checkpoint of step {step}: {error.strerror or error} "
                f"({self._store.folder}); training goes on"
            )
            return -1


def _file_names(ranks: int) -> tuple[str, ...]:
    return ("state.pt", *(f"rank-{rank}.pt" for rank in range(ranks)))


def _pack(state: dict[str, Any]) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _raw(data: bytes) -> Writer:
    def write(file: HashingFile) -> None:
        file.write(data)

    return write


def _tensors(state: dict[str, Any]) -> Writer:
    def write(file: HashingFile) -> None:
        import torch

        torch.save(state, cast(BinaryIO, file))  # all it needs is write and flush

    return write

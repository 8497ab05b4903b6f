"""A checkpoint on its way from one incarnation to the next, in memory, before it is on disk.

Rank 0 of the one that leaves has its snapshot in memory without a name (``snapshot.py``), and puts what belongs to
single ranks beside it. The daemon tells the ranks of the next incarnation which process holds it; they open it through
``/proc`` and keep it open until they have reported. Nothing is copied but into the place where it is needed, nothing
is hashed (it never left memory), and nothing is left behind by a kill.

A hand-over is no checkpoint to rely on: the incarnation that leaves commits the same bytes to disk before it goes, and
steps trained from them in the meantime count only once that has happened (``successor.py``).
"""

from __future__ import annotations

import copy
import io
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.protocol import Handed

_NAME = "gpusched-trial-{}"


def memory_name(trial: int) -> str:
    """Return the name that ``/proc`` shows for the memory of a trial."""
    return _NAME.format(trial)


class Outbox:
    """State that belongs to single ranks, in a memory of its own; kept by rank 0 of the incarnation that leaves."""

    def __init__(self, trial: int) -> None:
        self._trial = trial
        self._file = -1

    def pack(self, step: int, state: int, iteration: int, parts: Sequence[bytes]) -> Handed | None:
        """Make it ready to be opened; ``state``: the snapshot's descriptor. None where there is no room."""
        header = json.dumps({"iteration": iteration, "sizes": [len(part) for part in parts]})
        data = b"".join((header.encode(), b"\n", *parts))
        try:
            if self._file < 0:
                self._file = os.memfd_create(memory_name(self._trial))
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, data, 0)
        except OSError:
            return None
        return Handed(step, os.getpid(), state, self._file)


class Received:
    """The hand-over, opened by a rank of the next incarnation: a checkpoint to restore from (``Restorable``).

    Raises OSError or ValueError where it is not there any more.
    """

    lasting = False
    """False: the memory is given back soon, so restored state must be copied out of it."""

    def __init__(self, handed: Handed, trial: int) -> None:
        self.step = handed.step
        self._state = _open(handed.pid, handed.state, trial)
        try:
            rest = _open(handed.pid, handed.rest, trial)
        except BaseException:
            os.close(self._state)
            raise
        with os.fdopen(rest, "rb") as file:
            header, _, data = file.read().partition(b"\n")
        about = json.loads(header)
        self._parts: dict[str, bytes] = {}
        at = 0
        for rank, size in enumerate(about["sizes"]):
            self._parts[f"rank-{rank}.pt"] = data[at : at + size]
            at += size
        self.facts = {"iteration": about["iteration"], "world_size": len(self._parts)}
        self.files = ("state.pt", *self._parts)

    def load(self, name: str) -> Any:
        """As ``Checkpoint.load`` does."""
        import torch

        if name in self._parts:
            return torch.load(io.BytesIO(self._parts[name]), weights_only=True)
        path = f"/proc/self/fd/{self._state}"
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)

    def close(self) -> None:
        """Let go of the memory; what was loaded keeps its part of it for as long as it lives."""
        if self._state >= 0:
            os.close(self._state)
            self._state = -1


def own(state: Any) -> Any:
    """A copy of a loaded state that does not live in a checkpoint's memory."""
    return copy.deepcopy(state)


def _open(pid: int, descriptor: int, trial: int) -> int:
    """A descriptor of our own; ValueError if the process behind the number is another by now."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    shown = ""
    with suppress(OSError):
        shown = str(Path(f"/proc/self/fd/{found}").readlink())
    if shown.removesuffix(" (deleted)") != f"/memfd:{memory_name(trial)}":
        os.close(found)
        raise ValueError(f"{path} is not this trial's")
    return found

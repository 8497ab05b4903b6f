"""A checkpoint on its way from one incarnation to the next, in memory, before it is on disk.

Rank 0 of the one that leaves has its snapshot in memory without a name (``Snapshot``), and puts what belongs to
single ranks beside it. The daemon tells the ranks of the next incarnation which process holds it; they open it through
``/proc`` and keep it open until they have reported. Nothing is copied but into the place where it is needed, nothing
is hashed (it never left memory), and nothing is left behind by a kill.

A hand-over does not replace a checkpoint: the incarnation that leaves commits the same bytes to disk before it goes,
and steps trained from them in the meantime count only once that has happened.

A snapshot is taken while training stands still, so that writing it to disk need not be. The kernel copies into it
(``pwrite``), which takes no page faults; fresh memory that is touched page by page costs ten times what the copying
does on some machines. It is kept from one snapshot to the next, so rank 0 grows by the size of the state at its first
save. ``/dev/shm`` may be as small as it likes.

The prestarted incarnation (``Successor``), while the one before still trains:

1. *Set up.* The script runs until something depends on where training stands: ``track``, ``steps``, ``report``, the
   step, a loader's position. There all ranks wait, and rank 0 says so to the daemon.
2. *Restored.* The daemon says what to go on from: what the one before hands over in memory while it commits the same
   to disk, or the newest checkpoint on disk. Training begins.
3. *Confirmed.* The one before has gone, its checkpoint is committed, and the launch is in the journal. The shim takes
   the mark ``waits`` away. Until then reports are kept back and nothing is saved: if the one before dies without a
   checkpoint, this incarnation is ended and has never been.

On GPUs the first touch of CUDA, wherever in the script that is, waits until the incarnation is confirmed: the launch is
in the journal then, and so its GPUs have been proven empty. What touches CUDA without torch is found at ``track``.

A successor lives by its line to the daemon: where that ends before it is confirmed, its shim ends it.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from gpusched.protocol import Handed, Waits
from gpusched.worker import endings
from gpusched.worker.channel import Channel
from gpusched.worker.context import uses_cuda
from gpusched.worker.group import Call, Group

_LOOK_S = 0.005
_PATIENCE_S = 5.0


def memory_name(trial: int) -> str:
    """Return the name that ``/proc`` shows for the memory of a trial."""
    return f"gpusched-trial-{trial}"


class Snapshot:
    """Memory that holds what ``torch.save`` would write. ``name`` is what ``/proc`` shows."""

    def __init__(self, name: str = "gpusched") -> None:
        self._name = name
        self._file = -1
        self._end = 0
        self._map: mmap.mmap | None = None

    @property
    def file(self) -> int:
        """The descriptor of the memory; -1 before the first snapshot."""
        return self._file

    def take(self, state: Any) -> memoryview:
        """Serialise ``state``; the bytes are good until the next call.

        Raises:
            MemoryError: Memory does not suffice for a copy.
        """
        import torch
        from torch.utils.serialization import config

        self._open()
        self._end = 0
        how = {
            # The manifest's SHA-256 covers every byte; the archive's own sums would cost as much as the copying.
            "save.compute_crc32": False,
            # From a GPU through pinned memory: 12.6 GB/s, not 1.4 (pytorch/pytorch#138018, #143342).
            "save.use_pinned_memory_for_d2h": torch.cuda.is_initialized(),
        }
        with config.patch(how):  # type: ignore[attr-defined]
            torch.save(state, cast(BinaryIO, self))  # all it needs is write and flush
        os.ftruncate(self._file, self._end)  # a reader finds one archive, and nothing behind
        if self._map is None or len(self._map) != self._end:
            self._map = mmap.mmap(self._file, self._end, mmap.MAP_SHARED, mmap.PROT_READ)
        return memoryview(self._map)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        at = 0
        try:
            while at < view.nbytes:
                at += os.pwrite(self._file, view[at:], self._end + at)
        except OSError as error:
            raise MemoryError(f"no room for a snapshot: {error}") from None
        self._end += at
        return at

    def flush(self) -> None:
        """Do nothing: every write goes to the memory at once."""

    def _open(self) -> None:
        if self._file < 0:
            try:
                self._file = os.memfd_create(self._name)
            except OSError as error:
                raise MemoryError(f"no room for a snapshot: {error}") from None


class Outbox:
    """State that belongs to single ranks, in a memory of its own; kept by rank 0 of the incarnation that leaves."""

    def __init__(self, trial: int) -> None:
        self._trial = trial
        self._file = -1

    def pack(self, step: int, state: int, iteration: int, parts: Sequence[bytes]) -> Handed | None:
        """Make it ready to be opened; ``state``: the snapshot's descriptor. None without room."""
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
        """Load as ``Checkpoint.load`` does."""
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


def _open(pid: int, descriptor: int, trial: int) -> int:
    """Return a descriptor of our own; ValueError if the process behind the number is another by now."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    shown = ""
    with suppress(OSError):
        shown = str(Path(f"/proc/self/fd/{found}").readlink())
    if shown.removesuffix(" (deleted)") != f"/memfd:{memory_name(trial)}":
        os.close(found)
        raise ValueError(f"{path} is not this trial's")
    return found


class Successor:
    """``mark``: the file that is there until this incarnation counts. ``channel``: rank 0's; None elsewhere."""

    def __init__(self, mark: Path, group: Group, channel: Channel | None, trial: int) -> None:
        self._mark = mark
        self._group = group
        self._channel = channel
        self._trial = trial
        self._confirmed = False
        self._guards_gpu = False

    def guard_gpu(self, select: Callable[[], object]) -> None:
        """Have torch's first touch of CUDA wait until this incarnation counts; ``select`` then takes the rank's GPU."""
        import torch

        self._guards_gpu = True
        touch = torch.cuda._lazy_init

        def wait_and_touch() -> None:
            self._refuse_early_touch()
            if self._channel is not None and not self.is_confirmed:
                self._channel.tell(Waits(at_gpu=True))
            self.confirm()
            torch.cuda._lazy_init = touch
            touch()
            select()

        torch.cuda._lazy_init = wait_and_touch

    def _refuse_early_touch(self) -> None:
        """Raise RuntimeError where this process has been on its GPU before it may, which nothing can undo."""
        if self._guards_gpu and uses_cuda() and not self.is_confirmed:
            raise RuntimeError(
                "the script used CUDA, and not through torch, before the ranks before it had left: say "
                "`prestart: false` in the recipe"
            )

    def wait(self) -> Received | None:
        """Wait until the trial may go on; return what was handed over, None for the newest checkpoint on disk.

        All ranks call it. Raises SystemExit where it will never go on.
        """
        self._refuse_early_touch()
        self._group.exchange(Call.RESTORE)
        handed = self._hear() if self._channel is not None else None
        said = (
            (-1, 0, 0, 0)
            if handed is None
            else (handed.step, handed.pid, handed.state, handed.rest)
        )
        step, pid, state, rest = map(int, self._group.share(Call.RESTORE, *said))
        if step < 0:
            return None
        found: Received | None = None
        with suppress(OSError, ValueError, KeyError):
            found = Received(Handed(step, pid, state, rest), self._trial)
        if self._group.all_true(Call.RESTORE, found is not None):
            return found
        # The incarnation before has gone already: either it has committed this step, or this one will be ended.
        if found is not None:
            found.close()
        if self._channel is not None:
            self.confirm()
        self._group.share(Call.RESTORE, step)
        return None

    def _hear(self) -> Handed | None:
        assert self._channel is not None
        word = self._channel.wait_to_restore()
        until_s = time.monotonic() + _PATIENCE_S
        while word is None and not self.is_confirmed:
            # The daemon has gone. Either it has told our shim before that this counts, or the shim ends us.
            if time.monotonic() > until_s:
                endings.mark_failed()
                raise SystemExit(1)
            time.sleep(_LOOK_S)
        return word.handed if word is not None else None

    @property
    def is_confirmed(self) -> bool:
        self._confirmed = self._confirmed or not self._mark.exists()
        return self._confirmed

    def confirm(self) -> None:
        """Wait until the incarnation counts. If it never does, its shim ends this process here."""
        while not self.is_confirmed:
            time.sleep(_LOOK_S)

"""The ranks of this trial: a control group of their own, and the few things they must agree on.

Everything gpusched's own code says between ranks goes through one primitive, ``exchange``: every rank hands in a few
numbers with the name of the call it is in, and sees what all the others handed in. So ranks that are in different calls
(a ``report`` under ``if rank == 0``) are found out and told which line to change.

The control group is gloo over a prefix of torchrun's store, and known to no other code: torch's default process group
is the script's. It exists after ``gpusched.init()``; a script that wants another backend or timeout makes it before,
and may destroy it when it likes.

With one rank no process group is made and torch is not imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.worker.context import require_cuda
from gpusched.worker.endings import PACKAGE

if TYPE_CHECKING:
    import torch

PATIENCE_S = 600.0
"""How long rank 0 waits for the others to come to the same call, as NCCL does. They wait for rank 0 for as long as it
takes: a script may evaluate on rank 0 alone."""

LOOK_AFTER_S = 10.0
"""When rank 0 looks where the others are, and how much later again: ranks that all wait in a collective of the script's
will never come."""

_LONG = timedelta(days=30)
_JOIN_PATIENCE = timedelta(minutes=30)
_PAYLOAD = 2


class Call(StrEnum):
    """Call that a rank can be in when it talks to the others, in words for users."""

    REPORT = "trial.report()"
    SAVE = "the saving of a checkpoint"
    MEAN = "trial.mean()"
    RESTORE = "gpusched.init()"
    YIELD = "trial.should_yield()"
    END = "its end"
    STEPS = "the next of trial.steps()"
    FILES = "trial.checkpoint_dir()"
    BATCH = "the next batch of a stream"


_CALLS = tuple(Call)


class RanksDisagree(Exception):
    """The ranks of a trial are not in the same call; the message names the lines.

    ``calls``: they were seen in different calls; else one of them has gone, or does not come.
    """

    def __init__(self, message: str, *, calls: bool = False) -> None:
        super().__init__(message)
        self.calls = calls


class Group:
    """The ranks of one trial. ``join`` first."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.patience_s = PATIENCE_S
        self._control: Any = None
        self._names: Any = None

    def join(self, device_kind: str | None) -> None:
        """Join the other ranks over torchrun's store. All ranks call it.

        Args:
            device_kind: ``"cpu"`` or ``"cuda"``, for torch's default group, which is made unless the script has one;
                None: by what torch finds.

        Raises:
            RuntimeError: A rank does not come.
            ValueError: ``MASTER_ADDR`` or ``MASTER_PORT`` is missing.
        """
        if self.world_size == 1:
            return
        import torch
        import torch.distributed as dist

        on_gpu = torch.cuda.is_available() if device_kind is None else device_kind == "cuda"
        if on_gpu and not dist.is_initialized():
            require_cuda()  # before anything is shared: each rank says it, whichever is first
        incarnation = os.environ.get("GPUSCHED_INCARNATION", "0")
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        # Of torchrun's agent; without one rank 0 serves it, and the script's own group may use the same port.
        met = dist.rendezvous("env://", self.rank, self.world_size, timeout=_JOIN_PATIENCE)
        served, _, _ = next(met)
        store = dist.PrefixStore(f"gpusched/{incarnation}/{attempt}", served)
        self._control = dist.ProcessGroupGloo(store, self.rank, self.world_size, _LONG)
        self._names = store
        store.set(f"pid/{self.rank}", str(os.getpid()))
        if not dist.is_initialized():
            # A search notices a hang itself, and continues the trial: NCCL's own watchdog would fail it.
            limit = _LONG if "GPUSCHED_INCARNATION" in os.environ else None
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=limit)

    def exchange(self, call: Call, *values: float) -> list[tuple[float, ...]]:
        """Return every rank's values, by rank; all ranks must be in the same call.

        Raises:
            RanksDisagree: They are not, or one of them has gone.
        """
        if self.world_size == 1:
            return [values]
        import torch

        place, line = script_line()
        number = float(_CALLS.index(call))
        padded = [*values, *([0.0] * (_PAYLOAD - len(values)))]
        mine = torch.tensor([number, float(line), *padded], dtype=torch.float64, device="cpu")
        everyone = [row.tolist() for row in self._gather(call, mine)]
        if any(row[0] != number for row in everyone):
            raise RanksDisagree(_disagreement(everyone, place), calls=True)
        return [tuple(row[2 : 2 + len(values)]) for row in everyone]

    def share(self, call: Call, *values: float) -> tuple[float, ...]:
        """Return rank 0's values, on every rank."""
        return self.exchange(call, *values)[0]

    def gather_bytes(self, call: Call, data: bytes) -> list[bytes]:
        """Return every rank's bytes, by rank."""
        if self.world_size == 1:
            return [data]
        import torch

        sizes = [int(row[0]) for row in self.exchange(call, len(data))]
        if not any(sizes):
            return [b""] * self.world_size
        mine = torch.zeros(max(sizes), dtype=torch.uint8, device="cpu")
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = self._gather(call, mine)
        return [bytes(row[:size].tolist()) for row, size in zip(rows, sizes, strict=True)]

    def _gather(self, call: Call, mine: torch.Tensor) -> list[torch.Tensor]:
        import torch

        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        place, line = script_line()
        where = f"{call} ({place}:{line})"
        work = self._control.allgather([rows], [mine])
        try:
            if self.rank:
                work.wait(_LONG)
            else:
                self._wait_for_others(work, where, line)
        except RuntimeError as error:
            raise RanksDisagree(
                f"another rank has gone while rank {self.rank} was in {where}: if it did not fail, "
                f"it made fewer calls; every rank must make the same ones ({error})"
            ) from None
        return rows

    def _wait_for_others(self, work: Any, where: str, line: int) -> None:
        """Wait on rank 0, which looks twice whether the other ranks will ever come.

        Once is not enough: a forward pass through DDP looks like a wait.
        """
        stuck, waited_s, patience_s = "", 0.0, self.patience_s
        looks_s = {min(after_s, patience_s) for after_s in (LOOK_AFTER_S, 2 * LOOK_AFTER_S)}
        for limit_s in sorted({*looks_s, patience_s}):
            try:
                work.wait(timedelta(seconds=limit_s - waited_s))
                return
            except RuntimeError as error:
                if "timed out" not in str(error).lower():
                    raise
            waited_s = limit_s
            before, stuck = stuck, self._stuck_elsewhere(line)
            if stuck and stuck == before:
                break
        raise RanksDisagree(
            f"rank 0 has waited {waited_s:.0f} s in {where} for the other ranks{stuck}: every rank must call it, so "
            f"move it out of any `if rank == 0`"
        )

    def _stuck_elsewhere(self, line: int) -> str:
        """Word where the other ranks wait, if all wait in another line of the script; they are asked by a signal."""
        try:
            from gpusched.processes import stacks  # Linux alone has that signal

            pids = {rank: int(self._names.get(f"pid/{rank}")) for rank in range(1, self.world_size)}
            places = stacks.places(pids, stacks.file_of)
        except Exception:  # a plain run, or a rank that has gone
            return ""
        if not all(each.waits and f":{line} in " not in each.frame for each in places.values()):
            return ""
        return "".join(f", but rank {rank} waits in {each.frame}" for rank, each in places.items())


def script_line() -> tuple[str, int]:
    """Return file and line of the script's code that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return Path(frame.f_code.co_filename).name, frame.f_lineno


def _disagreement(everyone: Sequence[Sequence[float]], place: str) -> str:
    told = []
    for rank, row in enumerate(everyone):
        call = _CALLS[int(row[0])]
        is_over = call is Call.END
        where = "has come to its end" if is_over else f"is in {call} at line {int(row[1])}"
        told.append(f"rank {rank} {where}")
    return (
        f"the ranks of this trial make different calls ({place}): {', '.join(told)}. Every rank must "
        f"call report, mean and should_yield the same number of times and in the same order"
    )

"""The ranks of this trial: joining their process group, and the few things they must agree on.

Everything gpusched's own code says between ranks goes through one primitive, ``exchange``: every rank hands in a few
numbers with the name of the call it is in, and sees what all the others handed in. So ranks that are in different calls
(a ``report`` under ``if rank == 0``) are found out and told which line to change. It runs over a gloo group of its own,
so that it never meets the script's collectives.

With one rank no process group is made and torch is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.worker.gpu import require_cuda

if TYPE_CHECKING:
    import torch

PATIENCE_S = 300.0
"""How long rank 0 waits for the others to come to the same call. They wait for rank 0 for as long as it takes: a script
may evaluate on rank 0 alone."""

END_PATIENCE_S = 10.0
"""How long a rank 0 that is done waits for the others to come to their end."""

_LONG = timedelta(days=30)
_PAYLOAD = 5
_PACKAGE = f"{Path(__file__).parent.parent}/"


class Call(IntEnum):
    """What a rank can be in when it talks to the others; the name is what a user is shown."""

    REPORT = 1
    SAVE = 2
    MEAN = 3
    RESTORE = 4
    YIELD = 5
    END = 6
    STEPS = 7

    @property
    def shown(self) -> str:
        return {
            Call.REPORT: "trial.report()",
            Call.SAVE: "the saving of a checkpoint",
            Call.MEAN: "trial.mean()",
            Call.RESTORE: "gpusched.init()",
            Call.YIELD: "trial.should_yield()",
            Call.END: "its end",
            Call.STEPS: "the next of trial.steps()",
        }[self]


class RanksDisagree(RuntimeError):
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

    def join(self, device_kind: str) -> None:
        """Join the process group that torchrun prepared, unless the script has joined it already."""
        if self.world_size == 1:
            return
        import torch.distributed as dist

        if not dist.is_initialized():
            if device_kind == "cuda":
                require_cuda()
            dist.init_process_group("cpu:gloo,cuda:nccl" if device_kind == "cuda" else "gloo")
            _tolerate_a_second_join()
        self._control = dist.new_group(backend="gloo", timeout=_LONG)

    def exchange(self, call: Call, *values: float) -> list[tuple[float, ...]]:
        """Every rank's values, by rank; all ranks must be in the same call.

        Raises:
            RanksDisagree: They are not, or one of them has gone.
        """
        if self.world_size == 1:
            return [values]
        import torch

        place, line = script_line()
        padded = [*values, *([0.0] * (_PAYLOAD - len(values)))]
        mine = torch.tensor([float(call), float(line), *padded], dtype=torch.float64)
        everyone = [row.tolist() for row in self._gather(call, place, line, mine)]
        if any(row[0] != call for row in everyone):
            raise RanksDisagree(_disagreement(everyone, place), calls=True)
        return [tuple(row[2 : 2 + len(values)]) for row in everyone]

    def share(self, call: Call, *values: float) -> tuple[float, ...]:
        """Rank 0's values, on every rank."""
        return self.exchange(call, *values)[0]

    def all_true(self, call: Call, value: bool) -> bool:
        """Whether it is true on every rank."""
        return all(row[0] for row in self.exchange(call, float(value)))

    def end(self, *, save: bool) -> bool:
        """Meet the other ranks, whose scripts must be over as well; return whether rank 0 wants the last state saved.

        Raises:
            RanksDisagree: Another rank is in another call, so this one has made fewer; or it does not come.
            Exception: The script has taken its process groups down.
        """
        self.patience_s = min(self.patience_s, END_PATIENCE_S)
        return bool(self.share(Call.END, save)[0])

    def gather_bytes(self, call: Call, data: bytes) -> list[bytes]:
        """Every rank's bytes, by rank."""
        if self.world_size == 1:
            return [data]
        import torch

        sizes = [int(row[0]) for row in self.exchange(call, len(data))]
        mine = torch.zeros(max(sizes), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        place, line = script_line()
        rows = self._gather(call, place, line, mine)
        return [bytes(row[:size].tolist()) for row, size in zip(rows, sizes, strict=True)]

    def _gather(self, call: Call, place: str, line: int, mine: torch.Tensor) -> list[torch.Tensor]:
        import torch
        import torch.distributed as dist

        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        limit = timedelta(seconds=self.patience_s) if self.rank == 0 else _LONG
        where = f"{call.shown} ({place}:{line})"
        try:
            work = dist.all_gather(rows, mine, group=self._control, async_op=True)
            work.wait(limit)
        except RuntimeError as error:
            if "timed out" in str(error).lower():
                raise RanksDisagree(
                    f"rank 0 has waited {self.patience_s:.0f} s in {where} for the other ranks: "
                    f"every rank must call it, so move it out of any `if rank == 0`"
                ) from None
            raise RanksDisagree(
                f"another rank has gone while rank {self.rank} was in {where}: if it did not fail, "
                f"it made fewer calls; every rank must make the same ones ({error})"
            ) from None
        return rows


def script_line() -> tuple[str, int]:
    """File and line of the script's code that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Path(frame.f_code.co_filename).name, frame.f_lineno


def _disagreement(everyone: Sequence[Sequence[float]], place: str) -> str:
    told = []
    for rank, row in enumerate(everyone):
        call = Call(int(row[0]))
        where = (
            "has come to its end"
            if call is Call.END
            else f"is in {call.shown} at line {int(row[1])}"
        )
        told.append(f"rank {rank} {where}")
    return (
        f"the ranks of this trial make different calls ({place}): {', '.join(told)}. Every rank must "
        f"call report, mean and should_yield the same number of times and in the same order"
    )


def _tolerate_a_second_join() -> None:
    """Let a script that calls ``init_process_group`` after ``gpusched.init()`` have the group that is there.

    Once destroyed, it is made again as the script says.
    """
    import torch.distributed as dist

    original = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            original(*args, **kwargs)

    dist.init_process_group = init_process_group

"""Whether a GPU is really free: the rule, on plain values.

Free means all three: the trial's process tree is empty (whoever asks has made sure of that), no compute process is on
the GPU but those that live on an idle one (an MPS server), and memory is back at the idle baseline plus a tolerance.
Killing a process only queues the driver's clean-up: its pid may leave NVML's list long before its memory comes back,
or the other way round, so neither alone proves anything. What is not known is not free.

A driver that cannot say one of the two (no process list in some containers and on WSL, no memory figure on GPUs that
share the host's memory) is judged by the other, and that is said once; a GPU for which neither can be had is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpusched.devices.baseline import Baseline, tolerance_bytes
from gpusched.devices.gpu import Gpu, Usage
from gpusched.devices.holders import Holder
from gpusched.text import show_bytes


@dataclass(frozen=True, slots=True)
class Means:
    """What NVML has been seen to give for a GPU. What it gave once and does not give now is unknown, not absent."""

    processes: bool = False
    memory: bool = False

    def with_reading(self, usage: Usage) -> Means:
        memory = usage.memory_v2_bytes is not None or usage.memory_v1_bytes is not None
        return Means(self.processes or usage.processes is not None, self.memory or memory)

    @property
    def enough(self) -> bool:
        return self.processes or self.memory

    def shortfall(self, gpu: Gpu) -> str:
        """What cannot be checked on this GPU, to be said once; empty if all can."""
        if not self.enough:
            return (
                f"{gpu.label} is not used: NVML gives neither its processes nor its memory, so nobody could confirm "
                f"that it is free again"
            )
        if not self.processes:
            return (
                f"{gpu.label}: NVML lists no processes here; a release is confirmed by the process tree and memory "
                f"alone"
            )
        if not self.memory:
            return (
                f"{gpu.label}: NVML gives no memory figure; a release is confirmed by the process tree and NVML's list "
                f"of processes alone"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``clean``: nobody is on the GPU. Else ``why`` in words, and whether strangers alone are in the way."""

    clean: bool
    why: str = ""
    holders: tuple[Holder, ...] = ()
    foreign_only: bool = False


def judge(
    gpu: Gpu, usage: Usage, known: Baseline, means: Means, who: Callable[[int], Holder]
) -> Verdict:
    """Judge one reading. ``who`` names a pid (from a cache: it must not block)."""
    if usage.error:
        return Verdict(False, f"it cannot be read: {usage.error}")
    if not means.enough:
        return Verdict(False, means.shortfall(gpu))
    if means.processes and usage.processes is None:
        return Verdict(False, "NVML does not list its processes any more")
    holders = _holders(usage, known, who)
    if holders:
        # One stranger explains any amount of memory: it leaves with them, or is judged then.
        names = ", ".join(str(h) for h in holders[:3])
        more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
        foreign_only = all(h.whose == "foreign" for h in holders)
        return Verdict(False, f"held by {names}{more}", holders, foreign_only)
    excess = known.excess_bytes(usage)
    if means.memory and excess is None:
        return Verdict(False, "NVML gives no memory figure that compares with its idle baseline")
    if excess is not None and excess > tolerance_bytes(gpu.memory_total_bytes):
        return Verdict(
            False,
            f"{show_bytes(excess)} more in use than when idle, held by nobody that NVML names",
        )
    return Verdict(True)


def _holders(usage: Usage, baseline: Baseline, who: Callable[[int], Holder]) -> tuple[Holder, ...]:
    found = []
    for process in usage.compute:
        holder = replace(who(process.pid), memory_bytes=process.memory_bytes)
        if holder.whose != "resident" and process.pid not in baseline.residents:
            found.append(holder)
    return tuple(found)

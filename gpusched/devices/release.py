"""The rule whether a GPU is really free, on plain values.

Free means all three: the trial's process tree is empty (the caller has made sure of that), no compute process is on
the GPU but those that live on an idle one (an MPS server), and memory is back at the idle baseline plus a tolerance.
Killing a process only queues the driver's clean-up: its pid may leave NVML's list long before its memory comes back,
or the other way round, so neither alone proves anything. What is not known is not free.

A driver that cannot say one of the two (no process list in some containers and on WSL, no memory figure on GPUs that
share the host's memory) is judged by the other, and that is said once; a GPU for which neither can be had is refused.

The *baseline* is the memory in use on an idle GPU, kept on disk, per UUID. It is learnt only from a GPU with no compute
process on it and no more in use than an idle driver may take; within one boot it only ever falls, so that what leaks
from trial to trial adds up and is noticed. Another boot, driver or memory size starts it afresh.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gpusched.devices.gpu import Gpu, GpuUsage
from gpusched.devices.holders import Holder
from gpusched.devices.leases import file_name
from gpusched.folder.files import private_folder, write_durably
from gpusched.text import show_bytes

WAITING = "waiting for the driver's answer"
MIB = 1 << 20
IDLE_LIMIT_BYTES = 1024 * MIB
"""More than this on a GPU without processes is not an idle driver's: a process is there that NVML does not name."""
CONTAINED_LIMIT_BYTES = 128 * MIB
"""Inside a container NVML may name this container's processes alone: a bare context of somebody else is more."""
UNEXPLAINED_MIN_BYTES = 512 * MIB
"""Beside a trial: what its own contexts may have more in use than NVML says of them."""
RESIDENT_MAX_BYTES = 64 * MIB
"""A process without a name that is there before us in a container and holds no more is the machine's own (MPS)."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Idle use, without what the display's processes hold. None: the driver gives no figure."""

    idle_bytes: int | None
    residents: tuple[int, ...] = ()

    def excess_bytes(self, usage: GpuUsage) -> int | None:
        """Return how much more is in use than when idle; None if that cannot be said."""
        if usage.memory_bytes is None or self.idle_bytes is None:
            return None
        return usage.memory_bytes - usage.graphics_bytes - self.idle_bytes

    def ceiling_bytes(self, usage: GpuUsage) -> int | None:
        """Return the memory in use above which the GPU is not free, whoever is on it; None where that is unknown."""
        if usage.memory_bytes is None or self.idle_bytes is None:
            return None
        return self.idle_bytes + tolerance_bytes() + usage.graphics_bytes


@functools.cache
def tolerance_bytes() -> int:
    """Allow what an idle GPU varies by, far less than a bare CUDA context (256 to 616 MiB) that no list may name.

    On WSL the windows of the host come and go in the same memory.
    """
    return 512 * MIB if "microsoft" in os.uname().release.lower() else 64 * MIB


def assumed(*, lenient: bool, contained: bool = False) -> Baseline:
    """Assume a baseline for a GPU never seen idle. ``lenient``: all that an idle driver may take, after strangers.

    Otherwise what it usually takes, for a GPU that a trial of ours has just left.
    """
    limit_bytes = CONTAINED_LIMIT_BYTES if contained else IDLE_LIMIT_BYTES
    return Baseline(limit_bytes if lenient else 16 * MIB)


def learn(
    usage: GpuUsage,
    known: Baseline | None,
    means: Means,
    who: Callable[[int], Holder],
    *,
    contained: bool = False,
) -> Baseline | None:
    """Take the reading of a GPU on which no trial is into its baseline, if nobody else is there either.

    The figure falls or stays; one above what is known, or above what an idle driver may take, is not learnt.
    """
    if usage.error or usage.is_partial:
        return known
    if usage.graphics_bytes and known is not None:
        return known  # a display that shrinks between two calls would look like a lower baseline
    residents = set(known.residents) if known else set()
    for process in usage.compute:
        whose = who(process.pid).whose
        is_small = process.memory_bytes is not None and process.memory_bytes <= RESIDENT_MAX_BYTES
        if whose == "unseen" and known is None and is_small:
            residents.add(process.pid)
        elif whose != "resident":
            return known
    if means.memory:
        excess = (known or assumed(lenient=True, contained=contained)).excess_bytes(usage)
        if excess is None or excess > (tolerance_bytes() if known else 0):
            return known
    figures = [known.idle_bytes] if known and known.idle_bytes is not None else []
    if usage.memory_bytes is not None:
        figures.append(max(0, usage.memory_bytes - usage.graphics_bytes))
    return Baseline(min(figures, default=None), tuple(sorted(residents)))


class _Kept(msgspec.Struct, frozen=True):
    """A baseline on disk, and the circumstances it was learnt in."""

    idle_bytes: int | None
    residents: tuple[int, ...]
    driver: str
    boot: str
    total: int | None


class BaselineFile:
    """``<state>/baselines/<uuid>.json``. An unreadable file, or one of other circumstances, counts as missing."""

    def __init__(self, state_dir: Path, driver: str, boot: str) -> None:
        self._folder = state_dir / "baselines"
        self._driver = driver
        self._boot = boot

    def read(self, gpu: Gpu) -> Baseline | None:
        try:
            kept = msgspec.json.decode(self._path(gpu).read_bytes(), type=_Kept)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        baseline = Baseline(kept.idle_bytes, kept.residents)
        return baseline if kept == self._kept(gpu, baseline) else None

    def write(self, gpu: Gpu, baseline: Baseline) -> None:
        """Raises OSError; losing a baseline only means learning it again."""
        private_folder(self._folder)
        write_durably(self._path(gpu), msgspec.json.encode(self._kept(gpu, baseline)))

    def _kept(self, gpu: Gpu, baseline: Baseline) -> _Kept:
        idle_bytes, residents = baseline.idle_bytes, baseline.residents
        return _Kept(idle_bytes, residents, self._driver, self._boot, gpu.memory_total_bytes)

    def _path(self, gpu: Gpu) -> Path:
        return self._folder / f"{file_name(gpu.uuid)}.json"


@dataclass(frozen=True, slots=True)
class Means:
    """The signals that NVML has been seen to give for a GPU. One given before and not now is unknown, not absent."""

    processes: bool = False
    memory: bool = False

    def with_reading(self, gpu: Gpu, usage: GpuUsage) -> Means:
        memory = usage.memory_bytes is not None and not gpu.is_numa_node
        return Means(self.processes or usage.processes is not None, self.memory or memory)

    @property
    def enough(self) -> bool:
        return self.processes or self.memory

    def shortfall(self, gpu: Gpu) -> str:
        """Say what cannot be checked on this GPU; empty if all can."""
        if not self.enough:
            return (
                f"{gpu.label} is not used: NVML gives neither processes nor memory (drivers before 510 do not), so "
                f"no release could be confirmed"
            )
        if not self.processes:
            return (
                f"{gpu.label}: NVML lists no processes here; a release is confirmed by the process tree and memory "
                f"alone"
            )
        if not self.memory:
            why = "NVML gives no memory figure"
            if gpu.is_numa_node:
                why = (
                    "its memory is a NUMA node of the system, which keeps what ended processes had"
                )
            return (
                f"{gpu.label}: {why}; a release is confirmed by the process tree and NVML's list "
                f"of processes alone"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement. ``clean``: the GPU is free; else ``why`` in words, and whether strangers alone are in the way."""

    clean: bool
    why: str = ""
    holders: tuple[Holder, ...] = ()
    foreign_only: bool = False


def judge(
    gpu: Gpu,
    usage: GpuUsage,
    known: Baseline,
    means: Means,
    who: Callable[[int], Holder],
    is_beside_another: bool = False,
    is_beside_remains: bool = False,
) -> Verdict:
    """Judge one reading. ``who`` names a pid (from a cache: it must not block).

    ``is_beside_another``: another trial of ours has its share of the GPU. Since no process of the trial in question
    lives, those of ours that do are the other's, and so is the memory that NVML says they have.
    ``is_beside_remains``: the share in question was proven free before another trial ended that is being released.
    Ended processes are then that trial's, and so is the memory, which that trial's release judges.
    """
    if usage.error:
        return Verdict(False, f"the GPU cannot be read: {usage.error}")
    if not means.enough:
        return Verdict(False, means.shortfall(gpu))
    if means.processes and usage.processes is None and not usage.is_partial:
        return Verdict(False, "NVML no longer lists the GPU's processes")
    holders = _holders(usage, known, who)
    whose = ("ours",) * is_beside_another + ("gone",) * is_beside_remains
    others = tuple(holder for holder in holders if holder.whose in whose)
    holders = tuple(holder for holder in holders if holder not in others)
    if holders:
        # One stranger explains any amount of memory: it leaves with them, or is judged then.
        names = ", ".join(str(h) for h in holders[:3])
        more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
        foreign_only = all(h.whose in ("foreign", "desktop") for h in holders)
        return Verdict(False, f"held by {names}{more}", holders, foreign_only)
    if is_beside_remains:
        return Verdict(False, WAITING) if usage.is_partial else Verdict(True)
    excess = known.excess_bytes(usage) if means.memory else None
    if any(other.memory_bytes is None for other in others):
        return Verdict(False, "NVML does not say how much memory the other trial on it has")
    if excess is not None:  # processes that draw are left out already
        excess -= sum(other.memory_bytes or 0 for other in others)
        desktop = (p for p in usage.compute if not p.draws and who(p.pid).whose == "desktop")
        excess -= sum(process.memory_bytes or 0 for process in desktop)
    if means.memory and excess is None:
        return Verdict(False, "NVML gives no memory figure to compare with the idle baseline")
    if excess is not None and excess > tolerance_bytes():
        why = f"{show_bytes(excess)} more memory in use than when idle"
        if not usage.is_partial or usage.processes is not None:
            file = f"/dev/nvidia{'*' if gpu.minor is None else gpu.minor}"
            why += f", and NVML names no process that holds it (`sudo fuser -v {file}` may)"
        return Verdict(False, why)
    return Verdict(False, WAITING) if usage.is_partial else Verdict(True)


def _holders(
    usage: GpuUsage, baseline: Baseline, who: Callable[[int], Holder]
) -> tuple[Holder, ...]:
    found = []
    for process in usage.compute:
        holder = replace(who(process.pid), memory_bytes=process.memory_bytes)
        if not holder.lives_there and process.pid not in baseline.residents:
            found.append(holder)
    return tuple(found)


def strangers(
    usage: GpuUsage, known: Baseline | None, who: Callable[[int], Holder], *, contained: bool
) -> dict[int, Holder]:
    """Return whoever is on a GPU beside its trial, by pid.

    Under 0 stands the memory that no process of this container has: newer drivers hide all others in there.
    """
    found = {process.pid: who(process.pid) for process in usage.compute}
    found = {pid: holder for pid, holder in found.items() if holder.whose == "foreign"}
    sizes = [process.memory_bytes for process in usage.compute]
    excess = known.excess_bytes(usage) if known else None
    if contained and excess is not None and sizes and None not in sizes:
        hidden = excess - sum(size or 0 for size in sizes)
        if hidden > UNEXPLAINED_MIN_BYTES:
            found[0] = Holder(0, "unseen", memory_bytes=hidden)
    return found

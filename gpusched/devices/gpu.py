"""NVML's answers about one GPU or MIG slice, as plain values: facts (once), usage (often), vitals (now and then).

A reading is immutable once taken; what a driver cannot say is None, never a guess. Only ``NvmlLost`` gets out of the
``read_...`` functions as an exception; an error that leaves a reading incomplete is written into the reading.
These functions may block (see ``nvml.py``): they are called by ``helper.py`` alone, in processes of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml

from gpusched.devices.nvml import (
    NvmlDenied,
    NvmlError,
    NvmlLost,
    NvmlNotFound,
    NvmlUnsupported,
    ask,
    ask_if_supported,
)

SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG slice of one (then ``parent`` is the GPU's UUID)."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str = ""
    minor: int | None = None
    memory_total_bytes: int | None = None
    numa_node: int | None = None
    cpus: frozenset[int] = frozenset()
    mig: bool = False
    parent: str | None = None
    slice: int | None = None
    #: The system counts its memory as a NUMA node, and keeps pages of processes that have ended (GH200, GB200).
    is_numa_node: bool = False

    @property
    def label(self) -> str:
        """A short name: ``GPU 3``, or ``GPU 3/1`` for a MIG slice."""
        return f"GPU {self.index}" if self.slice is None else f"GPU {self.index}/{self.slice}"

    @property
    def board(self) -> str:
        """The UUID of the physical GPU."""
        return self.parent or self.uuid


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on the GPU, under the pid that NVML knows it by. ``memory_bytes``: None if not said.

    It computes, draws, or does both (compositors and browsers do, and so do simulators).
    """

    pid: int
    memory_bytes: int | None
    computes: bool = True
    draws: bool = False


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """Processes on a GPU and memory in use, at one moment.

    ``at``: the time when this reading was *begun*; a release is judged by readings begun after it was asked for.
    ``memory_bytes`` leaves out what the driver reserves for itself. ``error``: why the reading is incomplete in a way
    that a later one may not be.
    ``is_partial``: nobody asked for the processes, since memory alone says that the GPU is not free.
    """

    uuid: str
    at: float
    processes: tuple[GpuProcess, ...] | None = None
    memory_bytes: int | None = None
    error: str = ""
    is_partial: bool = False

    @property
    def compute(self) -> tuple[GpuProcess, ...]:
        return tuple(p for p in self.processes or () if p.computes)

    @property
    def graphics_bytes(self) -> int:
        """Memory of processes that draw: comes and goes with windows; not a leak."""
        return sum(p.memory_bytes or 0 for p in self.processes or () if p.draws)


@dataclass(frozen=True, slots=True)
class Vitals:
    """Health and load of a GPU. ``throttle``: NVML's bits of what slows the clocks; ``recovery``: the action wanted.

    ``prohibited``: its compute mode allows no context. ``fabric_missing``: nobody has set up its NVLink fabric.
    ``error``: what could be read before and cannot now.
    """

    at: float
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: int = 0
    recovery: int | None = None
    rows_pending: bool = False
    rows_failed: bool = False
    ecc_uncorrected: int | None = None
    pages_pending: bool = False
    prohibited: bool = False
    fabric_missing: bool = False
    error: str = ""


def read_gpu(index: int) -> tuple[Gpu, tuple[Gpu, ...]]:
    """Read the GPU at NVML's ``index`` and, if it is cut by MIG, its slices."""
    handle = ask("nvmlDeviceGetHandleByIndex", index)
    pci = ask_if_supported("nvmlDeviceGetPciInfo", handle)
    bus_id = str(pci.busId) if pci else ""
    mig = ask_if_supported("nvmlDeviceGetMigMode", handle)
    gpu = Gpu(
        uuid=ask("nvmlDeviceGetUUID", handle),
        index=index,
        name=ask_if_supported("nvmlDeviceGetName", handle) or "NVIDIA GPU",
        pci_bus_id=bus_id,
        minor=ask_if_supported("nvmlDeviceGetMinorNumber", handle),
        memory_total_bytes=_total(handle),
        numa_node=_numa_node(bus_id),
        cpus=_cpus(handle),
        mig=bool(mig and mig[0]),
        is_numa_node=ask_if_supported("nvmlDeviceGetNumaNodeId", handle) is not None,
    )
    return gpu, tuple(_slices(gpu, handle)) if gpu.mig else ()


def _slices(gpu: Gpu, board: Any) -> list[Gpu]:
    found = []
    for place in range(ask("nvmlDeviceGetMaxMigDeviceCount", board)):
        try:
            handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", board, place)
        except NvmlNotFound:
            continue
        slice_ = replace(
            gpu,
            uuid=ask("nvmlDeviceGetUUID", handle),
            name=ask_if_supported("nvmlDeviceGetName", handle) or f"{gpu.name} MIG",
            memory_total_bytes=_total(handle),
            mig=False,
            parent=gpu.uuid,
            slice=place,
        )
        found.append(slice_)
    return found


def _total(handle: Any) -> int | None:
    memory = ask_if_supported("nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else int(memory.total)


def _cpus(handle: Any) -> frozenset[int]:
    """Return the cores next to the GPU; empty where the driver does not say."""
    words = (max(os.cpu_count() or 1, 64) + 63) // 64
    mask = ask_if_supported("nvmlDeviceGetCpuAffinity", handle, words)
    if mask is None:
        return frozenset()
    return frozenset(64 * w + bit for w in range(words) for bit in range(64) if mask[w] >> bit & 1)


def _numa_node(bus_id: str) -> int | None:
    """Read the GPU's node from sysfs. (``nvmlDeviceGetNumaNodeId`` is the node that a GPU's own memory forms.)"""
    domain, _, rest = bus_id.lower().partition(":")
    path = SYS / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"
    with contextlib.suppress(OSError, ValueError):
        node = int(path.read_text())
        return node if node >= 0 else None
    return None


def read_usage(gpu: Gpu, handle: Any, at: float, *, ceiling_bytes: int | None = None) -> GpuUsage:
    """Read processes, then memory.

    ``ceiling_bytes``: with more in use the processes are not asked for: 4.5 ms of the driver's time, memory takes 12 us
    (measured on an RTX 4090 laptop: flightlessmango/MangoHud#2104).
    """
    errors: list[str] = []
    if ceiling_bytes is not None:
        used = _used(handle, [])
        if used is not None and used > ceiling_bytes:
            return GpuUsage(gpu.uuid, at, memory_bytes=used, is_partial=True)
    processes = _processes(handle, errors)
    return GpuUsage(gpu.uuid, at, processes, _used(handle, errors), "; ".join(errors))


def _used(handle: Any, errors: list[str]) -> int | None:
    """Return the memory in use without the driver's reserve (version 2 of the question: from driver 510 on)."""
    try:
        return int(ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2).used)
    except NvmlLost:
        raise
    except NvmlUnsupported:
        return None
    except NvmlError as error:
        errors.append(str(error))
        return None


_LISTS = (
    (False, "nvmlDeviceGetComputeRunningProcesses_v3"),
    (False, "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    (True, "nvmlDeviceGetGraphicsRunningProcesses_v3"),
)


def _processes(handle: Any, errors: list[str]) -> tuple[GpuProcess, ...] | None:
    """Return every process with a context; None where compute processes are not listed (``errors``: just now).

    Clients of an MPS server have a list of their own.
    """
    found: dict[int, GpuProcess] = {}
    for place, (draws, function) in enumerate(_LISTS):
        try:
            listed = ask(function, handle)
        except NvmlLost:
            raise
        except NvmlError as error:
            if not isinstance(error, NvmlUnsupported | NvmlDenied):
                errors.append(str(error))
            if place == 0:
                return None
            continue
        for item in listed:
            used = None if item.usedGpuMemory is None else int(item.usedGpuMemory)
            known = found.get(int(item.pid))
            if known is None:
                found[int(item.pid)] = GpuProcess(int(item.pid), used, not draws, draws)
            elif draws:
                found[int(item.pid)] = replace(known, draws=True)
    return tuple(found.values())


def read_vitals(handle: Any, at: float, answered: set[str]) -> Vitals:
    """Read all that the driver gives about a GPU's health and load. ``handle``: of the GPU, not of a slice.

    ``answered``: the questions about its health that were answered before, which this adds to. One of them that fails
    now makes the reading incomplete; one that never was answered is not to be had here.
    """
    errors: list[str] = []

    def health(function: str, *arguments: object) -> Any | None:
        try:
            answer = ask(function, handle, *arguments)
        except (NvmlUnsupported, NvmlDenied):
            return None
        except NvmlLost:
            raise
        except NvmlError as error:
            if function in answered:
                errors.append(str(error))
            return None
        answered.add(function)
        return answer

    load = ask_if_supported("nvmlDeviceGetUtilizationRates", handle)
    heat = ask_if_supported("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    power = ask_if_supported("nvmlDeviceGetPowerUsage", handle)
    slowed = ask_if_supported("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if slowed is None:  # the constant's name until driver 535
        slowed = ask_if_supported("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    rows = health("nvmlDeviceGetRemappedRows")
    ecc = health(
        "nvmlDeviceGetTotalEccErrors",
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    fields = health("nvmlDeviceGetFieldValues", [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    mode = health("nvmlDeviceGetComputeMode")
    return Vitals(
        at=at,
        utilisation=None if load is None else load.gpu / 100,
        temperature_c=None if heat is None else float(heat),
        power_w=None if power is None else power / 1000,
        throttle=int(slowed or 0),
        recovery=None if fields is None else _recovery_action(fields[0]),
        rows_pending=bool(rows and rows[2]),
        rows_failed=bool(rows and rows[3]),
        ecc_uncorrected=ecc,
        pages_pending=bool(ask_if_supported("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        prohibited=mode == pynvml.NVML_COMPUTEMODE_PROHIBITED,
        fabric_missing=_fabric_missing(handle),
        error="; ".join(errors),
    )


def _fabric_missing(handle: Any) -> bool:
    """Tell whether CUDA would refuse the GPU (error 802) since the fabric manager has not registered it."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    if ask_if_supported("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
        return False
    return info.state in (
        pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED,
        pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS,
    )


def _recovery_action(field: Any) -> int | None:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    wide = field.valueType in (
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    )
    return int(field.value.ullVal if wide else field.value.uiVal)

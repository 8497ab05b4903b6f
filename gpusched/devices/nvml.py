"""The boundary to the NVIDIA driver: every call goes through ``ask``, and its answers become plain values.

``nvmlInit`` is called once and lasts as long as the process. A call may block for as long as a sick GPU pleases, so
nothing here is called by the daemon: ``helper.py`` calls it in a process of its own. What a driver cannot say is None,
never a guess. The names are those of ``nvidia-ml-py`` (``import pynvml``), which are those of the C library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pynvml

from gpusched.errors import DeviceError

if not hasattr(pynvml, "NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET"):
    raise DeviceError(
        f"{pynvml.__file__} is not nvidia-ml-py 12.575 or newer: "
        "`pip uninstall pynvml nvidia-ml-py`, then `pip install nvidia-ml-py`"
    )


class NvmlError(DeviceError):
    """An NVML call failed. ``code`` is NVML's, ``function`` the call."""

    def __init__(self, function: str, code: int, text: str) -> None:
        self.function = function
        self.code = code
        self.text = text
        super().__init__(_ADVICE.get(code) or f"NVML: {text} ({function})")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function, self.code, self.text)


class NvmlUnsupported(NvmlError):
    """A question that this driver or this GPU never answers, or not to this user."""


class NvmlLost(NvmlError):
    """A GPU that is gone from the bus, that the driver does not show, or that must be reset before anything else."""


class NvmlAbsent(NvmlError):
    """A driver that is missing or not loaded."""


_KINDS: dict[int, type[NvmlError]] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: NvmlUnsupported,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NvmlUnsupported,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NvmlUnsupported,
    pynvml.NVML_ERROR_DEPRECATED: NvmlUnsupported,
    pynvml.NVML_ERROR_NO_PERMISSION: NvmlUnsupported,
    pynvml.NVML_ERROR_NOT_FOUND: NvmlLost,
    pynvml.NVML_ERROR_GPU_IS_LOST: NvmlLost,
    pynvml.NVML_ERROR_RESET_REQUIRED: NvmlLost,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: NvmlLost,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NvmlAbsent,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: NvmlAbsent,
}

_ADVICE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no NVIDIA driver here (libnvidia-ml.so.1 not found). Install the driver, start the container with its GPUs "
        "(--gpus all), or use devices: cpu"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded. Try `nvidia-smi`; if it fails too, load or reinstall the driver, or "
        "use devices: cpu"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver was updated while it was loaded: its kernel and user halves differ. Reboot (`gpusched "
        "resume` continues a search), or use devices: cpu"
    ),
    pynvml.NVML_ERROR_UNKNOWN: (
        "NVML: Unknown Error. Does `nvidia-smi` tell more? A container that has lost its GPUs, as after `systemctl "
        "daemon-reload` on its host, is to be started again"
    ),
}

started = False


def start() -> None:
    """Initialise NVML unless it is already. May take seconds; raises NvmlAbsent without a driver."""
    global started
    if not started:
        ask("nvmlInit")
        started = True


def ask(function: str, *arguments: object) -> Any:
    """Call ``pynvml.<function>``; its answer, or an ``NvmlError`` of the right kind."""
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        kind = _KINDS.get(int(error.value), NvmlError)
        raise kind(function, int(error.value), str(error)) from None


def ask_if_supported(function: str, *arguments: object) -> Any | None:
    """Call as ``ask`` does, but return None where driver, GPU or rights give no answer; a lost GPU still raises."""
    try:
        return ask(function, *arguments)
    except NvmlLost:
        raise
    except NvmlError:
        return None


# ---------------------------------------------------------------- facts, read once


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the driver shows. ``cpus``: the cores next to it; ``mig``: it is cut into slices."""

    uuid: str
    index: int = 0
    name: str = "NVIDIA GPU"
    pci_bus_id: str = ""
    memory_total_bytes: int | None = None
    cpus: frozenset[int] = frozenset()
    mig: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether the driver has shown it; of a resumed search's GPU that is missing the UUID alone is known."""
        return bool(self.pci_bus_id)

    @property
    def label(self) -> str:
        return f"GPU {self.index}" if self.is_shown else self.uuid


def read_gpu(index: int) -> Gpu:
    """Read the GPU at NVML's ``index``."""
    handle = ask("nvmlDeviceGetHandleByIndex", index)
    pci = ask_if_supported("nvmlDeviceGetPciInfo", handle)
    mig = ask_if_supported("nvmlDeviceGetMigMode", handle)
    memory = ask_if_supported("nvmlDeviceGetMemoryInfo", handle)
    return Gpu(
        uuid=ask("nvmlDeviceGetUUID", handle),
        index=index,
        name=ask_if_supported("nvmlDeviceGetName", handle) or "NVIDIA GPU",
        pci_bus_id=str(pci.busId) if pci else "",
        memory_total_bytes=None if memory is None else int(memory.total),
        cpus=_cpus(handle),
        mig=bool(mig and mig[0]),
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """The driver and its GPUs, in PCI order, which is CUDA's under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""

    version: str
    cuda: int
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


def read_machine() -> Machine:
    """Look for all GPUs; one that cannot be read is named in the notes. Seconds where the driver wakes GPUs up."""
    gpus: list[Gpu] = []
    notes: list[str] = []
    for index in range(ask("nvmlDeviceGetCount")):
        try:
            gpus.append(read_gpu(index))
        except NvmlError as error:
            notes.append(f"GPU {index} is left out: {error}")
    return Machine(
        version=str(ask("nvmlSystemGetDriverVersion")),
        cuda=int(ask("nvmlSystemGetCudaDriverVersion_v2")),
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.pci_bus_id.lower(), gpu.index))),
        notes=tuple(notes),
    )


def handle_of(gpu: Gpu) -> Any:
    """Return NVML's handle of a GPU; raises NvmlLost where the GPU is not in its place.

    By the bus: NVML attaches to the GPU of that place alone, and perhaps to all for a UUID.
    """
    handle = ask("nvmlDeviceGetHandleByPciBusId", gpu.pci_bus_id)
    if ask("nvmlDeviceGetUUID", handle) != gpu.uuid:
        code = pynvml.NVML_ERROR_GPU_NOT_FOUND
        raise NvmlLost("nvmlDeviceGetUUID", code, "another GPU is in its place")
    return handle


def _cpus(handle: Any) -> frozenset[int]:
    """Return the cores next to the GPU; empty where the driver does not say."""
    words = (max(os.cpu_count() or 1, 64) + 63) // 64
    mask = ask_if_supported("nvmlDeviceGetCpuAffinity", handle, words)
    if mask is None:
        return frozenset()
    return frozenset(64 * w + bit for w in range(words) for bit in range(64) if mask[w] >> bit & 1)


# ---------------------------------------------------------------- usage, read often


Contexts = dict[int, tuple[int | None, bool]]
"""By the pid that NVML gives: the memory of a process with a context on the GPU, and whether it draws."""


def read_usage(handle: Any) -> tuple[Contexts, int | None]:
    """Read processes, none where they are never listed, then memory in use, None where the driver never says.

    Raises NvmlError where the driver fails at one of them, which a later try may not. The memory in use is without the
    driver's reserve (version 2 of the question: from driver 510 on).
    """
    processes = _processes(handle)
    memory = _ask_of_usage("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    return processes, None if memory is None else int(memory.used)


def _processes(handle: Any) -> Contexts:
    """Return every process with a context; none where compute processes are never listed."""
    compute = _ask_of_usage("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if compute is None:
        return {}
    drawing = _ask_of_usage("nvmlDeviceGetGraphicsRunningProcesses_v3", handle) or ()
    draws = {int(item.pid) for item in drawing}
    found: Contexts = {}
    for item in (*compute, *drawing):
        pid, used = int(item.pid), item.usedGpuMemory
        found.setdefault(pid, (None if used is None else int(used), pid in draws))
    return found


def _ask_of_usage(function: str, *arguments: object) -> Any | None:
    """Call as ``ask`` does, but return None where driver, GPU or rights never answer; any other error raises."""
    try:
        return ask(function, *arguments)
    except NvmlUnsupported:
        return None


# ---------------------------------------------------------------- vitals, read now and then


@dataclass(frozen=True, slots=True)
class Vitals:
    """Health and load of a GPU. ``throttle``: NVML's bits of what slows the clocks; ``recovery``: the action wanted."""

    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: int = 0
    recovery: int = 0


def read_vitals(handle: Any) -> Vitals:
    """Read all that the driver gives about a GPU's health and load. Raises NvmlLost alone."""
    load = ask_if_supported("nvmlDeviceGetUtilizationRates", handle)
    heat = ask_if_supported("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    power = ask_if_supported("nvmlDeviceGetPowerUsage", handle)
    slowed = ask_if_supported("nvmlDeviceGetCurrentClocksEventReasons", handle)
    action = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    fields = ask_if_supported("nvmlDeviceGetFieldValues", handle, action)
    return Vitals(
        utilisation=None if load is None else load.gpu / 100,
        temperature_c=None if heat is None else float(heat),
        power_w=None if power is None else power / 1000,
        throttle=int(slowed or 0),
        recovery=int(fields[0].value.uiVal) if fields and not fields[0].nvmlReturn else 0,
    )


RESET = (
    "`sudo nvidia-smi --gpu-reset -i {index}`; in persistence mode first `sudo nvidia-smi -pm 0 -i {index}`, since "
    "nvidia-persistenced keeps the GPU open"
)
"""Processes that hold a GPU open are in the way of a reset: NVIDIA/gpu-operator#118, NVIDIA/NVSentinel#1690."""

_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: f"a reset of the GPU ({RESET})",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: f"a reset once the GPU is empty ({RESET})",
}
_HEAT = (
    pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
)


def illness(index: int, now: Vitals) -> str:
    """Say what the driver wants done to a GPU before it is used; empty if nothing. gpusched never does it."""
    if not now.recovery:
        return ""
    wish = _RECOVERY.get(now.recovery, f"recovery action {now.recovery} (see `nvidia-smi -q`)")
    return f"the driver asks for {wish.format(index=index)}"


def slowed_by(now: Vitals) -> str:
    """Say what slows a GPU, for people."""
    if now.throttle & _HEAT:
        return "slowed by heat"
    if now.throttle & pynvml.nvmlClocksEventReasonHwSlowdown:
        return "slowed by a limit of the hardware, such as its power supply"
    return ""

"""A scripted NVIDIA driver in the place of ``pynvml``, and the machine around it, as a function of the clock's time.

Contexts that appear and linger, memory that comes back late or never, calls that hang, fail or are not supported,
GPUs that are lost, processes of us and of others. ``test_ctypes.py`` crosses the boundary below, from ``pynvml`` to a
library in C.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import pynvml

from gpusched.devices import choose, nvml
from gpusched.devices.release import Holder, Processes

MIB = 1 << 20
GIB = 1 << 30
NEVER = float("inf")
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


class Time(Protocol):
    def now(self) -> float: ...

    def block(self, until: float) -> None: ...


@dataclass
class Context:
    """A process on a GPU. It is listed until ``listed_until``, its memory is taken until ``memory_until``."""

    pid: int
    memory: int
    since: float = 0.0
    listed_until: float = NEVER
    memory_until: float = NEVER
    graphics: bool = False


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * GIB
    reserved: int = 600 * MIB
    idle: int = 4 * MIB
    bus_id: str = "00000000:17:00.0"
    cpus: int = 0b1111
    mig: bool = False
    contexts: list[Context] = field(default_factory=list)
    #: C functions this GPU does not support.
    unsupported: set[str] = field(default_factory=set)
    #: (from, until, C function or "" for all, NVML error code)
    failures: list[tuple[float, float, str, int]] = field(default_factory=list)
    #: (from, until): a call begun in between returns only at the end of it.
    hangs: list[tuple[float, float]] = field(default_factory=list)
    lost_from: float = NEVER
    lost_until: float = NEVER
    utilisation: int = 0
    temperature: int = 40
    power_mw: int = 70_000
    throttle: int = 0
    recovery: int = 0

    def used(self, now: float) -> int:
        return self.idle + sum(c.memory for c in self.contexts if c.since <= now < c.memory_until)

    def listed(self, now: float) -> list[Context]:
        return [c for c in self.contexts if c.since <= now < c.listed_until]


@dataclass
class FakeProcess:
    user: str = "me"
    command: str = "python train.py"
    ours: bool = True
    ends: float = NEVER


class FakeDriver:
    """The script. ``pids``: "same", "host" (NVML names pids of outside the container) or "absent".

    As ``pynvml``: the methods are the library's functions for a GPU that is well, whose handle is the GPU; constants
    are the library's. A call about a sick GPU blocks or fails as the script has it.
    """

    def __init__(self, gpus: list[FakeGpu], time: Time, pids: str = "same") -> None:
        self.gpus = gpus
        self.time = time
        self.pids = pids
        self.version = "580.82.07"
        self.cuda = 13000
        self.init_code = pynvml.NVML_SUCCESS
        self.init_blocks_until = 0.0
        self.table: dict[int, FakeProcess] = {}

    # ------------------------------------------------------------ what happens

    def start(self, gpu: FakeGpu, pid: int, memory: int, **process: Any) -> Context:
        """A process opens a context now."""
        self.table.setdefault(pid, FakeProcess(**process))
        context = Context(pid, memory, since=self.time.now())
        gpu.contexts.append(context)
        return context

    def end(self, pid: int, listed_s: float = 0.0, memory_s: float = 0.0) -> None:
        """A process ends now; the driver takes its time to notice."""
        now = self.time.now()
        self.table[pid].ends = min(self.table[pid].ends, now)
        for gpu in self.gpus:
            for context in gpu.contexts:
                if context.pid == pid:
                    context.listed_until = min(context.listed_until, now + listed_s)
                    context.memory_until = min(context.memory_until, now + memory_s)

    # ------------------------------------------------------------ as pynvml

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("nvmlDeviceGet") or name == "nvmlDeviceGetCount":
            return found
        is_by_name = name.startswith("nvmlDeviceGetHandleBy")

        def guarded(subject: Any, *arguments: Any) -> Any:
            gpu = found(subject) if is_by_name else subject
            if code := self._sick(gpu, name):
                raise pynvml.NVMLError(code)
            return gpu if is_by_name else found(gpu, *arguments)

        return guarded

    def _sick(self, gpu: FakeGpu, name: str) -> int:
        for begin, end in gpu.hangs:
            if begin <= self.time.now() < end:
                self.time.block(end)
        now = self.time.now()
        if gpu.lost_from <= now < gpu.lost_until:
            return pynvml.NVML_ERROR_GPU_IS_LOST
        if name in gpu.unsupported:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        for begin, end, function, code in gpu.failures:
            if begin <= now < end and function in ("", name):
                return code
        return pynvml.NVML_SUCCESS

    def nvmlInit(self) -> None:
        self.time.block(self.init_blocks_until)
        if self.init_code:
            raise pynvml.NVMLError(self.init_code)

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByPciBusId(self, name: str) -> FakeGpu:
        for gpu in self.gpus:
            if name == gpu.bus_id:
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    # ------------------------------------------------------------ facts

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(busId=gpu.bus_id)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [int(gpu.mig), int(gpu.mig)]

    def nvmlDeviceGetCpuAffinity(self, gpu: FakeGpu, words: int) -> list[int]:
        return [gpu.cpus >> (64 * word) & (2**64 - 1) for word in range(words)]

    # ------------------------------------------------------------ usage

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        used = gpu.used(self.time.now())
        return SimpleNamespace(total=gpu.total, used=used if version else gpu.reserved + used)

    def _list(self, contexts: list[Context]) -> list[Any]:
        if self.pids == "absent":
            return []
        beyond = 100_000 if self.pids == "host" else 0
        return [SimpleNamespace(pid=c.pid + beyond, usedGpuMemory=c.memory) for c in contexts]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:
        return self._list([c for c in gpu.listed(self.time.now()) if not c.graphics])

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:
        return self._list([c for c in gpu.listed(self.time.now()) if c.graphics])

    # ------------------------------------------------------------ vitals

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(gpu=gpu.utilisation)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, _sensor: int) -> int:
        return gpu.temperature

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return gpu.power_mw

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        return gpu.throttle

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[int]) -> list[Any]:
        known = fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        code = 0 if known and "recovery" not in gpu.unsupported else pynvml.NVML_ERROR_NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=gpu.recovery))]


class FakeProcesses(Processes):
    """The machine's processes, from the driver's table instead of ``/proc``."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__(visible=driver.pids == "same")
        self._driver = driver

    def who(self, pid: int) -> Holder:
        process = self._driver.table.get(pid)
        if not self.visible or process is None:
            return super().who(pid)
        if process.ends <= self._driver.time.now():
            return Holder(pid, "gone")
        return Holder(pid, "ours" if process.ours else "foreign", process.user, process.command)


class RealTime:
    """The machine's time, for a fake driver in a process of its own."""

    def now(self) -> float:
        return time.monotonic()

    def block(self, until: float) -> None:
        time.sleep(max(0.0, until - self.now()))


@contextlib.contextmanager
def installed(driver: FakeDriver) -> Iterator[FakeDriver]:
    """The fake instead of ``pynvml``, for the whole process."""
    before = nvml.pynvml, nvml.started, choose.has_library
    nvml.pynvml, choose.has_library = driver, lambda: True
    nvml.started = False
    try:
        yield driver
    finally:
        nvml.pynvml, nvml.started, choose.has_library = before


def forget() -> None:
    """As a new process finds the library: not begun."""
    nvml.started = False

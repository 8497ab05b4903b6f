"""``pynvml`` by the script of ``fake_driver.py``, as ``gpusched.devices.nvml`` asks it; constants are the library's.

``test_ctypes.py`` crosses the boundary below, from ``pynvml`` to a library in C.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml

from gpusched.devices import nvml
from tests.devices.fake_driver import Context, FakeDriver, FakeGpu


class FakePynvml:
    """The library in the driver's hands: a call about a sick GPU blocks or fails as the script has it."""

    nvmlLib = "loaded"

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self._functions = Functions(driver)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("nvmlDevice", "nvmlSystem", "nvmlInit")):
            return getattr(pynvml, name)
        if name in self._driver.missing:
            return self._missing
        function = getattr(self._functions, name)
        if not name.startswith("nvmlDevice") or name == "nvmlDeviceGetCount":
            return function
        by_name = name.startswith("nvmlDeviceGetHandleBy")

        def guarded(subject: Any, *arguments: Any) -> Any:
            self._driver.calls[name] = self._driver.calls.get(name, 0) + 1
            gpu = function(subject) if by_name else subject
            if code := self._sick(gpu, name):
                raise pynvml.NVMLError(code)
            return gpu if by_name else function(gpu, *arguments)

        return guarded

    def _missing(self, *_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _sick(self, gpu: FakeGpu, name: str) -> int:
        time = self._driver.time
        for begin, end in gpu.hangs:
            if begin <= time.now() < end:
                time.block(end)
        now = time.now()
        if gpu.lost_from <= now < gpu.lost_until:
            return pynvml.NVML_ERROR_GPU_IS_LOST
        if name in gpu.unsupported:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        for begin, end, function, code in gpu.failures:
            if begin <= now < end and function in ("", name):
                return code
        return pynvml.NVML_SUCCESS


class Functions:
    """Each function of the library, for a GPU that is well; a GPU's handle is the GPU."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def nvmlInit(self) -> None:
        self._driver.inits += 1
        self._driver.time.block(self._driver.init_blocks_until)
        if self._driver.init_code:
            raise pynvml.NVMLError(self._driver.init_code)

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._driver.version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._driver.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self._driver.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._driver.gpus[index]

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> FakeGpu:
        for gpu in self._driver.gpus:
            if gpu.bus_id == bus_id:
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

    def nvmlDeviceGetPersistenceMode(self, gpu: FakeGpu) -> int:
        return gpu.persistence

    # ------------------------------------------------------------ usage

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        used = gpu.used(self._driver.time.now())
        return SimpleNamespace(total=gpu.total, used=used if version else gpu.reserved + used)

    def _list(self, contexts: list[Context]) -> list[Any]:
        if self._driver.pids == "absent":
            return []
        beyond = 100_000 if self._driver.pids == "host" else 0
        return [SimpleNamespace(pid=c.pid + beyond, usedGpuMemory=c.memory) for c in contexts]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:
        return self._list([c for c in gpu.listed(self._driver.time.now()) if not c.graphics])

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:
        return self._list([c for c in gpu.listed(self._driver.time.now()) if c.graphics or c.both])

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
        value = SimpleNamespace(uiVal=gpu.recovery)
        kind = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        return [SimpleNamespace(nvmlReturn=code, valueType=kind, value=value)]


@contextlib.contextmanager
def installed(driver: FakeDriver) -> Iterator[FakeDriver]:
    """The fake instead of ``pynvml``, for the whole process."""
    before = nvml.pynvml, nvml.started
    nvml.pynvml = FakePynvml(driver)
    nvml.started = False
    try:
        yield driver
    finally:
        nvml.pynvml, nvml.started = before


def forget() -> None:
    """As a new process finds the library: not begun."""
    nvml.started = False

"""A scripted NVIDIA driver behind the functions of ``libnvidia-ml.so.1``, for tests.

It stands where the C library stands: ``installed`` puts a ``FakeLibrary`` in the place of the loaded library, so that
all of ``nvidia-ml-py`` (argument order, structures, error codes) and all of gpusched run as they do on a GPU box. What
it answers is scripted by ``fake_driver.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pynvml

from gpusched.devices import nvml
from tests.devices.fake_driver import Context, FakeDriver, FakeGpu


def _number(argument: Any) -> int:
    return int(argument.value) if hasattr(argument, "value") else int(argument)


def _address(pointer: Any) -> int:
    return ctypes.c_void_p.from_buffer(pointer).value or 0


def _target(reference: Any) -> Any:
    """What ``ctypes.byref`` points to."""
    return reference._obj


def _set_pointer(reference: Any, address: int) -> None:
    ctypes.c_void_p.from_buffer(_target(reference)).value = address


class FakeLibrary:
    """The C functions. ``pynvml`` gets them by name; one that is missing raises AttributeError, as ctypes does."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self._functions = FakeFunctions(driver)

    def __getattr__(self, name: str) -> Any:
        if name in self._driver.missing:
            raise AttributeError(name)
        function = getattr(self._functions, name)
        by_name = ("nvmlDeviceGetHandleBy", "nvmlDeviceGetCount")
        if not name.startswith("nvmlDevice") or name.startswith(by_name):
            return function
        driver, sick = self._driver, self._functions.sick

        def guarded(handle: Any, *arguments: Any) -> int:
            driver.calls[name] = driver.calls.get(name, 0) + 1
            gpu = driver.at(_address(handle))
            if gpu is None:
                return pynvml.NVML_ERROR_INVALID_ARGUMENT
            return sick(gpu, name) or int(function(handle, *arguments))

        return guarded


class FakeFunctions:
    """Each function of the library, for a GPU that is well."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def sick(self, gpu: FakeGpu, name: str) -> int:
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

    def _gpu(self, handle: Any) -> FakeGpu:
        gpu = self._driver.at(_address(handle))
        assert gpu is not None
        return gpu

    # ------------------------------------------------------------ the system

    def nvmlInitWithFlags(self, flags: Any) -> int:
        self._driver.inits += 1
        self._driver.time.block(self._driver.init_blocks_until)
        return self._driver.init_code

    def nvmlShutdown(self) -> int:
        return 0

    @staticmethod
    def nvmlErrorString(code: Any) -> bytes:
        return b"error %d" % _number(code)

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        text.value = self._driver.version.encode()
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, reference: Any) -> int:
        _target(reference).value = self._driver.cuda
        return 0

    def nvmlDeviceGetCount_v2(self, reference: Any) -> int:
        _target(reference).value = len(self._driver.gpus)
        return 0

    # ------------------------------------------------------------ handles

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, reference: Any) -> int:
        gpu = self._driver.gpus[_number(index)]
        code = self.sick(gpu, "nvmlDeviceGetHandleByIndex_v2")
        _set_pointer(reference, gpu.address)
        return code

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: Any, reference: Any) -> int:
        for gpu in self._driver.gpus:
            if gpu.bus_id == bus_id.value.decode():
                code = self.sick(gpu, "nvmlDeviceGetHandleByPciBusId_v2")
                _set_pointer(reference, gpu.address)
                return code
        return pynvml.NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, reference: Any) -> int:
        wanted = uuid.value.decode()
        for gpu in self._driver.gpus:
            if gpu.uuid == wanted:
                code = self.sick(gpu, "nvmlDeviceGetHandleByUUID")
                _set_pointer(reference, gpu.address)
                return code
        return pynvml.NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        _target(current).value = _target(pending).value = int(self._gpu(handle).mig)
        return 0

    # ------------------------------------------------------------ facts

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        text.value = self._gpu(handle).uuid.encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        text.value = self._gpu(handle).name.encode()
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, reference: Any) -> int:
        _target(reference).busId = self._gpu(handle).bus_id
        return 0

    def nvmlDeviceGetMinorNumber(self, handle: Any, reference: Any) -> int:
        _target(reference).value = self._gpu(handle).minor
        return 0

    def nvmlDeviceGetCpuAffinity(self, handle: Any, words: Any, reference: Any) -> int:
        mask = self._gpu(handle).cpus
        for word in range(_number(words)):
            _target(reference)[word] = mask >> (64 * word) & (2**64 - 1)
        return 0

    def nvmlDeviceGetPersistenceMode(self, handle: Any, reference: Any) -> int:
        _target(reference).value = self._gpu(handle).persistence
        return 0

    # ------------------------------------------------------------ usage

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, reference: Any) -> int:
        gpu, memory = self._gpu(handle), _target(reference)
        assert memory.version == pynvml.nvmlMemory_v2
        memory.total, memory.reserved = gpu.total, gpu.reserved
        memory.used = gpu.used(self._driver.time.now())
        memory.free = memory.total - memory.used - memory.reserved
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, reference: Any) -> int:
        gpu, memory = self._gpu(handle), _target(reference)
        memory.total = gpu.total
        memory.used = gpu.reserved + gpu.used(self._driver.time.now())
        memory.free = memory.total - memory.used
        return 0

    def _list(self, contexts: list[Context], count: Any, array: Any) -> int:
        if self._driver.pids == "absent":
            contexts = []
        if array is None:
            _target(count).value = len(contexts)
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if contexts else pynvml.NVML_SUCCESS
        assert _target(count).value >= len(contexts)
        _target(count).value = len(contexts)
        for item, context in zip(array, contexts, strict=False):
            item.pid = context.pid + (100_000 if self._driver.pids == "host" else 0)
            item.usedGpuMemory = context.memory
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:
        listed = self._gpu(handle).listed(self._driver.time.now())
        return self._list([c for c in listed if not c.graphics], count, array)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:
        listed = self._gpu(handle).listed(self._driver.time.now())
        return self._list([c for c in listed if c.graphics or c.both], count, array)

    # ------------------------------------------------------------ vitals

    def nvmlDeviceGetUtilizationRates(self, handle: Any, reference: Any) -> int:
        _target(reference).gpu = self._gpu(handle).utilisation
        return 0

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, reference: Any) -> int:
        _target(reference).value = self._gpu(handle).temperature
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, reference: Any) -> int:
        _target(reference).value = self._gpu(handle).power_mw
        return 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, reference: Any) -> int:
        _target(reference).value = self._gpu(handle).throttle
        return 0

    def nvmlDeviceGetFieldValues(self, handle: Any, count: Any, reference: Any) -> int:
        for item in _target(reference):
            known = item.fieldId == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
            supported = known and "recovery" not in self._gpu(handle).unsupported
            item.nvmlReturn = 0 if supported else pynvml.NVML_ERROR_NOT_SUPPORTED
            item.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            item.value.uiVal = self._gpu(handle).recovery
        return 0


@contextlib.contextmanager
def installed(driver: FakeDriver) -> Iterator[FakeDriver]:
    """The fake instead of the C library, for the whole process."""
    driver.addresses = {0x1000 + 16 * place: gpu for place, gpu in enumerate(driver.gpus)}
    for address, gpu in driver.addresses.items():
        gpu.address = address
    before = pynvml.nvmlLib, nvml.started
    pynvml.nvmlLib = FakeLibrary(driver)
    forget()
    try:
        yield driver
    finally:
        forget()
        pynvml.nvmlLib, nvml.started = before


def forget() -> None:
    """As a new process finds the library: not begun, no function looked up."""
    nvml.started = False
    pynvml._nvmlGetFunctionPointer_cache.clear()

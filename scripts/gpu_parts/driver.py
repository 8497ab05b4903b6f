"""What a driver really says: NVML's answers and their latencies, memory across a kill, the words of faults.

These parts decide most: the rule of release (``gpusched/devices/release.py``) stands on them. They need no trial.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pynvml

from gpu_parts.box import Failed
from gpusched.devices.gpu import Gpu
from gpusched.devices.helper import (
    DriverFound,
    Facts,
    GpuSeen,
    Look,
    ThisMachine,
    WhichDriver,
    ask_once,
)
from gpusched.devices.holders import processes_here
from gpusched.devices.witness import DRIVER, Witness

CALLS = 20
SAMPLE_S = 0.001
GONE_WITHIN_S = 120.0

_QUESTIONS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("nvmlDeviceGetMemoryInfo", (pynvml.nvmlMemory_v2,)),
    ("nvmlDeviceGetMemoryInfo", ()),
    ("nvmlDeviceGetComputeRunningProcesses_v3", ()),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", ()),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", ()),
    ("nvmlDeviceGetUtilizationRates", ()),
    ("nvmlDeviceGetPowerUsage", ()),
    ("nvmlDeviceGetCurrentClocksEventReasons", ()),
    ("nvmlDeviceGetRemappedRows", ()),
    ("nvmlDeviceGetComputeMode", ()),
    ("nvmlDeviceGetFieldValues", ([pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION],)),
    ("nvmlDeviceGetNumaNodeId", ()),
    ("nvmlDeviceGetPersistenceMode", ()),
    ("nvmlDeviceGetSupportedEventTypes", ()),
)

_WARM = """
import importlib, os
from gpusched.runtime.warm import HEAVY
for name in HEAVY:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
tasks = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
files = {os.path.realpath(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd")}
print(len(tasks), sorted(f for f in files if "nvidia" in f))
"""

_FILL = """
import sys, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free * 0.7), dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""

_PARKED = """
import sys, torch
parts = range(int(sys.argv[1]))
held = [torch.full((250_000_000,), float(n), device="cuda") for n in parts]  # 1 GB each
torch.cuda.synchronize()
print("ready", flush=True)
for _ in sys.stdin:
    print(all(bool((part == n).all()) for n, part in zip(parts, held)), flush=True)
"""
PARK_STEPS = {"Lock": 1, "Checkpoint": 2, "Restore": 1, "Unlock": 0}
"""``cuCheckpointProcess..`` of the driver's library, from driver 570 on, and the ``CUprocessState`` each ends in."""
LOCK_TIMEOUT_MS = 60_000

_FAULTS = {
    "out of memory": "import torch; torch.empty(1 << 50, dtype=torch.uint8, device='cuda')",
    "index out of bounds": (
        "import torch; x = torch.zeros(8, device='cuda'); x[torch.tensor([1 << 40], device='cuda')]; "
        "torch.cuda.synchronize()"
    ),
}


def found(device: str) -> tuple[Gpu, ThisMachine]:
    """Return the GPU's facts as the product reads them."""
    world = ThisMachine()
    helper = world.start(processes_here())
    try:
        driver: DriverFound = ask_once(world, helper, WhichDriver(), 60.0)
        for index in range(driver.gpus):
            found = ask_once(world, helper, Facts(index), 60.0)
            gpu, slices = found.gpu, found.slices
            if device in (gpu.uuid, *(one.uuid for one in slices)):
                return gpu, world
    finally:
        helper.kill()
    raise Failed(f"{device} was not found")


def timed(function: str, handle: Any, arguments: tuple[object, ...]) -> dict[str, Any]:
    took, answer = [], ""
    for _ in range(CALLS):
        began = time.perf_counter()
        try:
            answer = str(getattr(pynvml, function)(handle, *arguments))
        except (pynvml.NVMLError, AttributeError) as error:
            answer = f"{type(error).__name__}: {error}"
        took.append(time.perf_counter() - began)
    middle_us, longest_us = 1e6 * median(took), 1e6 * max(took)
    return {
        "answer": answer[:200],
        "median_us": round(middle_us, 1),
        "max_us": round(longest_us, 1),
    }


def nvml(*, device: str) -> Iterator[dict[str, Any]]:
    """Ask everything that the product asks, and look at a context, the pid namespace and the warm imports."""
    gpu, _ = found(device)
    pynvml.nvmlInit()
    began = time.perf_counter()
    handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
    attach_s = time.perf_counter() - began
    answers = [
        {"call": function, "arguments": str(arguments), **timed(function, handle, arguments)}
        for function, arguments in _QUESTIONS
    ]
    opened = sorted({str(p.readlink()) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()})
    yield {
        "part": "nvml",
        "gpu": repr(gpu),
        "attach_s": round(attach_s, 4),
        "device_files_open": [name for name in opened if "nvidia" in name],
        "calls": answers,
    }
    warm = subprocess.run(
        [sys.executable, "-c", _WARM], capture_output=True, text=True, check=False
    )
    yield {"part": "nvml", "warm_imports": warm.stdout.strip() or warm.stderr[-300:]}
    idle = used(handle)
    child = Witness(sys.executable, [device], time.monotonic, DRIVER)
    try:
        while (said := child.said()) is None:
            time.sleep(SAMPLE_S)
        if said[device]:
            yield {"part": "nvml", "context": said[device], "idle_bytes": idle}
            return
        pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)]
        yield {
            "part": "nvml",
            "idle_bytes": idle,
            "context_bytes": used(handle) - idle,
            "pid": child.pid,
            "listed": pids,
            "initial_pid_namespace": not processes_here().contained,
        }
    finally:
        child.close()


def used(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)


def kill(*, device: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Kill a process that holds 70% of the memory: when waitpid returns, when its pid and its memory are gone."""
    gpu, _ = found(device)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
    for turn in range(rounds):
        idle = used(handle)
        process = begin(_FILL, device)
        full = used(handle)
        began = time.monotonic()
        process.send_signal(signal.SIGKILL)
        gone, memory = watched(process, handle, idle, began)
        process.communicate()
        steps = [
            pair
            for place, pair in enumerate(memory)
            if not place or pair[1] != memory[place - 1][1]
        ]
        yield {
            "part": "kill",
            "round": turn,
            "idle_bytes": idle,
            "full_bytes": full,
            **gone,
            "memory": steps[:50],
        }


def watched(
    process: subprocess.Popen[str], handle: Any, idle: int, began: float
) -> tuple[dict[str, float], list[tuple[float, int]]]:
    """Look every millisecond until process, memory and pid are gone; a list takes long: every tenth time."""
    gone: dict[str, float] = {}
    memory: list[tuple[float, int]] = []
    while len(gone) < 3 and time.monotonic() - began < GONE_WITHIN_S:
        memory.append((round(time.monotonic() - began, 4), used(handle)))
        over = {
            "waitpid_s": process.poll() is not None,
            "memory_s": memory[-1][1] <= idle + (64 << 20),
            "listed_s": len(memory) % 10 == 0 and process.pid not in listed(handle),
        }
        for name, is_over in over.items():
            if is_over:
                gone.setdefault(name, round(time.monotonic() - began, 4))
        time.sleep(SAMPLE_S)
    return gone, memory


def listed(handle: Any) -> set[int]:
    return {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)}


class LockArgs(ctypes.Structure):
    """``CUcheckpointLockArgs``. Without a limit a lock may wait for ever (NVIDIA/cuda-checkpoint, README)."""

    _fields_ = (
        ("timeoutMs", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class Parking:
    """The driver's checkpoint functions, called as NVIDIA's own example does (cuda-checkpoint, r570-features.c)."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        for name in (*PARK_STEPS, "GetState"):
            try:
                function = getattr(self._cuda, f"cuCheckpointProcess{name}")
            except AttributeError:
                raise Failed(
                    f"this driver cannot park a process (no cuCheckpointProcess{name}: from driver 570 on)"
                ) from None
            function.argtypes = (ctypes.c_int, ctypes.c_void_p)
        if code := self._cuda.cuInit(0):
            raise Failed(f"cuInit: {self.name_of(code)}")

    def name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"unknown").decode() + f" ({code})"

    def take(self, step: str, pid: int) -> str:
        """Take a step with the process; return what went wrong."""
        lock = LockArgs(timeoutMs=LOCK_TIMEOUT_MS)
        function = getattr(self._cuda, f"cuCheckpointProcess{step}")
        if code := function(pid, ctypes.byref(lock) if step == "Lock" else None):
            return f"cuCheckpointProcess{step}: {self.name_of(code)}"
        state = ctypes.c_int(-1)
        code = self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        if code or state.value != PARK_STEPS[step]:
            return f"after cuCheckpointProcess{step}: state {state.value}, {self.name_of(code)}"
        return ""


def park(*, device: str, sizes_gb: tuple[int, ...] = (1, 8, 40)) -> Iterator[dict[str, Any]]:
    """Take a live process off its GPU and put it back: how long, what is left of it meanwhile, is it the same after."""
    parking = Parking()
    gpu, _ = found(device)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id)
    for size_gb in sizes_gb:
        needed = size_gb * 1.1e9 + 1e9
        room = (gpu.memory_total_bytes or 0) - used(handle)
        memory = psutil.virtual_memory().available  # it is copied there
        if needed > min(room, memory):
            why = f"the GPU has {room} bytes free, the machine {memory}"
            yield {"part": "park", "size_gb": size_gb, "error": why}
        else:
            yield {"part": "park", "size_gb": size_gb, **parked(parking, device, handle, size_gb)}


def parked(parking: Parking, device: str, handle: Any, size_gb: int) -> dict[str, Any]:
    idle = used(handle)
    process = begin(_PARKED, device, str(size_gb))
    line: dict[str, Any] = {"full_bytes": used(handle)}
    try:
        for step in PARK_STEPS:
            began = time.perf_counter()
            error = parking.take(step, process.pid)
            line[f"{step.lower()}_s"] = round(time.perf_counter() - began, 4)
            if error:
                return {**line, "error": error}
            if step == "Checkpoint":
                line["left_bytes"] = used(handle) - idle
                line["still_listed"] = process.pid in listed(handle)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return {**line, "is_the_same": process.stdout.readline().strip() == "True"}
    finally:
        process.kill()
        process.communicate()


def begin(program: str, device: str, *words: str) -> subprocess.Popen[str]:
    seen = {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **seen},
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        process.kill()
        raise Failed("no process with memory on the GPU could be started")
    return process


def faults(*, device: str) -> Iterator[dict[str, Any]]:
    """Provoke errors: their words, the XIDs that come with them, and whether the product blames the right one."""
    from gpusched.core.events import TrialExited
    from gpusched.devices.health import IGNORED_XIDS
    from gpusched.executors.local.endings import may_be_the_gpus, memory_fault

    gpu, world = found(device)
    helper = world.start(processes_here())
    try:
        look = Look(gpu, (gpu,), world.now())
        ask_once(world, helper, look, 60.0)  # from here on errors are heard
        for name, program in _FAULTS.items():
            seen = {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            done = subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                env={**os.environ, **seen},
                check=False,
            )
            time.sleep(2.0)
            after: GpuSeen = ask_once(world, helper, look, 60.0)
            error = done.stderr.strip()[-1500:]
            ended = TrialExited(at=0.0, trial=0, incarnation=1, outcome="failed", error=error)
            yield {
                "part": "faults",
                "fault": name,
                "code": done.returncode,
                "error": error,
                "memory_fault": memory_fault(error),
                "may_be_the_gpus": may_be_the_gpus(ended),
                "xids": after.xids,
                "ignored": [number in IGNORED_XIDS for number in after.xids],
                "deaf": after.deaf,
            }
    finally:
        helper.kill()


def pinned(*, sizes_gb: tuple[float, ...] = (0.6, 6.0)) -> Iterator[dict[str, Any]]:
    """Copy a state from the GPU as a save does, through pinned memory and not."""
    import torch

    from gpusched.worker.handover import Snapshot

    for size_gb in sizes_gb:
        state = {"w": [torch.zeros(25_000_000, device="cuda") for _ in range(int(size_gb * 10))]}
        taken: dict[str, list[float]] = {"pinned": [], "pageable": []}
        really = torch.cuda.is_initialized
        for way, answer in (("pinned", really), ("pageable", lambda: False)):
            torch.cuda.is_initialized = answer
            snapshot = Snapshot()
            for _ in range(3):
                began = time.perf_counter()
                snapshot.take(state)
                taken[way].append(round(time.perf_counter() - began, 3))
        torch.cuda.is_initialized = really
        yield {"part": "pinned", "gb": size_gb, **{f"{way}_s": took for way, took in taken.items()}}

"""Answers of a real driver: NVML's answers and their latencies, memory across a kill, the words of faults.

These parts decide most: the rule of release (``gpusched/devices/release.py``) stands on them. They need no trial.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pynvml

from gpu_parts.box import Failed
from gpusched.devices.helper import Driver, World
from gpusched.devices.nvml import Gpu
from gpusched.devices.release import TOLERANCE_BYTES, Processes

CALLS = 20
SAMPLE_S = 0.001
GONE_WITHIN_S = 120.0

_QUESTIONS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("nvmlDeviceGetMemoryInfo", (pynvml.nvmlMemory_v2,)),
    ("nvmlDeviceGetMemoryInfo", ()),
    ("nvmlDeviceGetComputeRunningProcesses_v3", ()),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", ()),
    ("nvmlDeviceGetUtilizationRates", ()),
    ("nvmlDeviceGetPowerUsage", ()),
    ("nvmlDeviceGetCurrentClocksEventReasons", ()),
    ("nvmlDeviceGetFieldValues", ([pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION],)),
    ("nvmlDeviceGetPersistenceMode", ()),
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

_CONTEXT = """
import ctypes, sys
device, context = ctypes.c_int(), ctypes.c_void_p()
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
code = code or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
print(f"no context could be made (error {code})" if code else "ready", flush=True)
sys.stdin.read()
"""

_FILL = """
import sys, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free * 0.7), dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""

_FAULTS = {
    "out of memory": "import torch; torch.empty(1 << 50, dtype=torch.uint8, device='cuda')",
    "index out of bounds": (
        "import torch; x = torch.zeros(8, device='cuda'); x[torch.tensor([1 << 40], device='cuda')]; "
        "torch.cuda.synchronize()"
    ),
}


def found(device: str) -> Gpu:
    """Return the GPU's facts as the product reads them."""
    driver = Driver(World(), Processes())
    try:
        gpus = driver.machine().gpus
    finally:
        driver.close()
    for gpu in gpus:
        if gpu.uuid == device:
            return gpu
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
    gpu = found(device)
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
    alone = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
    }  # as the warm server sets it before it imports
    warm = subprocess.run([sys.executable, "-c", _WARM], capture_output=True, text=True, env=alone)
    yield {"part": "nvml", "warm_imports": warm.stdout.strip() or warm.stderr[-300:]}
    idle = used(handle)
    process = begin(_CONTEXT, device)
    try:
        yield {
            "part": "nvml",
            "idle_bytes": idle,
            "context_bytes": used(handle) - idle,
            "pid": process.pid,
            "listed": sorted(listed(handle)),
            "initial_pid_namespace": Processes().visible,
        }
    finally:
        process.kill()
        process.communicate()


def used(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)


def kill(*, device: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Kill a process that holds 70% of the memory: when waitpid returns, when its pid and its memory are gone."""
    gpu = found(device)
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
            "memory_s": memory[-1][1] <= idle + TOLERANCE_BYTES,
            "listed_s": len(memory) % 10 == 0 and process.pid not in listed(handle),
        }
        for name, is_over in over.items():
            if is_over:
                gone.setdefault(name, round(time.monotonic() - began, 4))
        time.sleep(SAMPLE_S)
    return gone, memory


def listed(handle: Any) -> set[int]:
    return {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)}


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
    said = process.stdout.readline().strip()
    if said != "ready":
        process.kill()
        process.communicate()
        raise Failed(said or "no process with memory on the GPU could be started")
    return process


def faults(*, device: str) -> Iterator[dict[str, Any]]:
    """Provoke errors: their words, and what the product takes them for."""
    from gpusched.processes.outcome import blame, memory_fault

    seen = {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for name, program in _FAULTS.items():
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **seen})
        error = done.stderr.strip()[-1500:]
        yield {
            "part": "faults",
            "fault": name,
            "code": done.returncode,
            "error": error,
            "memory_fault": memory_fault(error),
            "taken_for": blame(error, 1).outcome,
        }

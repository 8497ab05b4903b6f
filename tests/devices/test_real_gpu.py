"""On a real GPU: jobs that are killed while they allocate, and releases that are confirmed before anybody else comes.

Run with ``pytest -m gpu``; skipped with the reason where there is no GPU. The jobs speak to ``libcuda.so.1`` directly,
so no CUDA build of torch is needed, but for the last test, which skips itself without one. The release times that are
measured are printed (``-s``) as a line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Loop

from gpusched.devices.base import DeviceRemark, Quarantined, Released
from gpusched.devices.cuda import CudaDevices
from gpusched.devices.gpus import gpu_states
from gpusched.devices.release import tolerance_bytes
from gpusched.doctor.machine import doctor_checks, installed_torch_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("GPUSCHED_GPU_KILLS", "20"))
LIMIT_S = 60.0

JOB = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code, what):
    if code:
        print(f"failed {what} {code}", flush=True)
        sys.exit(1)
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
check(cuda.cuInit(0), "cuInit")
check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
wanted, chunk = int(total.value * float(sys.argv[1])), 256 << 20
for place in range(max(1, wanted // chunk)):
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(chunk)), "cuMemAlloc")
    check(cuda.cuMemsetD8_v2(pointer, 1, ctypes.c_size_t(chunk)), "cuMemsetD8")
    if place == 0:
        print("allocating", flush=True)
check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
print("allocated", flush=True)
while True:  # keeps the GPU busy
    cuda.cuMemsetD8_v2(pointer, 2, ctypes.c_size_t(chunk))
"""


class Job:
    """A process that takes a share of the GPU's memory and goes on writing to it."""

    def __init__(self, environment: dict[str, str], share: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(share)],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self._said = ""

    def wait_for(self, word: str, timeout_s: float = 60.0) -> None:
        stream = self.process.stdout
        assert stream is not None
        deadline = time.monotonic() + timeout_s
        while word not in self._said.split():
            assert "failed" not in self._said, self._said
            assert time.monotonic() < deadline, f"the job did not say {word!r}"
            if select.select([stream], [], [], 0.1)[0]:
                piece = os.read(stream.fileno(), 4096).decode()
                assert piece, f"the job ended after {self._said!r}"
                self._said += piece

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[CudaDevices]:
    found = CudaDevices("cuda", environ={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    yield found
    found.close()


def first_usable(devices: CudaDevices) -> tuple[Loop, str]:
    loop = Loop(time.monotonic)
    return loop, next(device.id for device in devices.open(loop) if device.usable)


def used_bytes(devices: CudaDevices, name: str) -> int:
    reading = next(r for r in devices.readings() if r.device == name)
    assert reading.memory_used_bytes is not None
    return reading.memory_used_bytes


def wait_released(devices: CudaDevices, loop: Loop, name: str) -> float:
    """Seconds until the release is confirmed."""
    begun = time.monotonic()
    devices.confirm_release([name], LIMIT_S)
    while Released((name,)) not in loop.events:
        loop.run(0.005)
        failed = [event for event in loop.events if isinstance(event, Quarantined)]
        assert not failed, failed
    loop.events.clear()
    return time.monotonic() - begun


def test_the_box_is_seen_whole(devices: CudaDevices) -> None:
    inventory = devices.open(Loop(time.monotonic))
    assert len({device.id for device in inventory}) == len(inventory)
    for reading in devices.readings():
        assert reading.memory_total_bytes
        assert reading.memory_used_bytes is not None
        assert reading.memory_used_bytes <= reading.memory_total_bytes
    states, _ = gpu_states()
    assert {state.device for state in states} >= {u for d in inventory for u in d.id.split("+")}
    for check in doctor_checks():
        print(check)


def test_a_job_is_seen_and_holds_the_gpu_until_it_ends(devices: CudaDevices) -> None:
    loop, name = first_usable(devices)
    idle = used_bytes(devices, name)
    devices.take([name])
    job = Job(dict(devices.place([name]).rank_env[0]), share=0.2)
    try:
        job.wait_for("allocated")
        devices.confirm_release([name], LIMIT_S)
        loop.run(1.5)
        told = [event for event in loop.events if not isinstance(event, DeviceRemark)]
        assert told == []
        if told == loop.events:  # no reduced guarantee: the job is named
            (reading,) = (one for one in devices.readings() if one.device == name)
            assert any(f"pid {job.process.pid}" in note for note in reading.notes)
    finally:
        job.end(signal.SIGKILL)
    wait_released(devices, loop, name)
    time.sleep(1.5)
    assert abs(used_bytes(devices, name) - idle) <= tolerance_bytes()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
@pytest.mark.parametrize("moment", ["allocating", "allocated"])
def test_release_after_killing(devices: CudaDevices, ending: signal.Signals, moment: str) -> None:
    loop, name = first_usable(devices)
    waits = []
    for _ in range(KILLS):
        devices.take([name])
        job = Job(dict(devices.place([name]).rank_env[0]), share=0.5)
        job.wait_for(moment)
        job.end(ending)
        waits.append(wait_released(devices, loop, name))
    figures = {
        "after": ending.name,
        "while": moment,
        "cycles": len(waits),
        "median_s": round(statistics.median(waits), 4),
        "p99_s": round(sorted(waits)[int(0.99 * (len(waits) - 1))], 4),
        "max_s": round(max(waits), 4),
    }
    print(json.dumps(figures))


def test_nobody_runs_out_of_memory_because_of_a_predecessor(devices: CudaDevices) -> None:
    loop, name = first_usable(devices)
    for _ in range(KILLS):
        devices.take([name])
        job = Job(dict(devices.place([name]).rank_env[0]), share=0.85)
        job.wait_for("allocated")
        job.end(signal.SIGKILL)
        wait_released(devices, loop, name)


def test_a_torch_job_killed_in_the_middle_of_its_steps(devices: CudaDevices) -> None:
    if importlib.util.find_spec("torch") is None or not (installed_torch_cuda() or ("", ""))[1]:
        pytest.skip("torch is built for CPUs only")
    program = (
        "import torch\n"
        "a = torch.randn(8192, 8192, device='cuda')\n"
        "torch.cuda.synchronize(); print('allocated', flush=True)\n"
        "while True:\n    a = torch.tanh(a @ a)\n"
    )
    loop, name = first_usable(devices)
    for _ in range(3):
        devices.take([name])
        environment = {**os.environ, **devices.place([name]).rank_env[0]}
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout.readline().strip() == "allocated"
        process.kill()
        process.wait()
        process.stdout.close()
        wait_released(devices, loop, name)

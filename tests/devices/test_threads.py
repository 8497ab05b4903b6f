"""The same code on the machine's own clock and threads: nothing the daemon's loop calls ever waits for a driver."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import gpu
from fake_driver import GIB, FakeDriver, FakeProcesses, RealTime
from fake_nvml import installed

from gpusched.devices.cuda import CudaDevices

PATIENCE_S = 60.0
BLOCKING_MAX_S = 0.010
"""A few milliseconds; the quickest of several calls is measured, since the machine is shared."""


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[FakeDriver, RealTime, CudaDevices]]:
    clock = RealTime()
    driver = FakeDriver([gpu(0), gpu(1)], clock)
    tmp_path.chmod(0o700)
    before = set(threading.enumerate())
    with installed(driver):
        devices = CudaDevices.from_spec(
            state_dir=tmp_path,
            environ={"XDG_STATE_HOME": str(tmp_path)},
            processes=FakeProcesses(driver),
        )
        try:
            yield driver, clock, devices
        finally:
            clock.release()
            driver.bell.set()
            devices.close()
            deadline = time.monotonic() + PATIENCE_S
            while set(threading.enumerate()) - before and time.monotonic() < deadline:
                driver.bell.set()
                time.sleep(0.01)
    assert not set(threading.enumerate()) - before, "threads outlive close()"


def quickest(calls: int, work: object) -> float:
    """The shortest duration of ``work()``: what always waits is never quick."""
    gc.collect()
    took = []
    for _ in range(calls):
        begun = time.perf_counter()
        work()  # type: ignore[operator]
        took.append(time.perf_counter() - begun)
        time.sleep(0.001)
    return min(took)


def test_a_release_in_real_time(real: tuple[FakeDriver, RealTime, CudaDevices]) -> None:
    driver, clock, devices = real
    name = devices.inventory()[0].id
    devices.placement([name])
    driver.start(driver.gpus[0], 11, GIB)
    begun = time.monotonic()
    driver.end(11, listed_s=0.05, memory_s=0.1)
    while not devices.released([name])[0].released:
        assert time.monotonic() - begun < PATIENCE_S
        time.sleep(0.005)
    assert time.monotonic() - begun >= 0.1


def test_nothing_blocks_while_a_gpu_hangs(real: tuple[FakeDriver, RealTime, CudaDevices]) -> None:
    driver, clock, devices = real
    first, second = (device.id for device in devices.inventory())
    driver.gpus[0].hangs.append((clock.now(), clock.now() + 100_000))
    assert clock.blocks.wait(PATIENCE_S), "its thread is in the middle of a call"
    questions = {
        "released": lambda: devices.released([first, second]),
        "faults": devices.faults,
        "recovered": devices.recovered,
        "readings": devices.readings,
        "placement": lambda: devices.placement([second]),
        "readmit": lambda: devices.readmit(first),
    }
    slow = {name: quickest(9, work) for name, work in questions.items()}
    assert max(slow.values()) < BLOCKING_MAX_S, slow
    devices.close()  # nor does this wait for it


def test_an_xid_is_heard(real: tuple[FakeDriver, RealTime, CudaDevices]) -> None:
    driver, _, devices = real
    name = devices.inventory()[0].id
    begun = time.monotonic()
    driver.xid(driver.gpus[0], 79)
    while not (faults := devices.faults()):
        assert time.monotonic() - begun < PATIENCE_S
        time.sleep(0.01)
    assert faults[0].device == name

"""The same code on the machine's own clock and threads: nothing the daemon's loop calls ever waits for a driver."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PATIENCE_S, Loop, gpu
from fake_driver import GIB, FakeDriver, FakeProcesses, RealTime
from fake_nvml import installed

from gpusched.devices.base import Quarantined, Released
from gpusched.devices.cuda import CudaDevices

BLOCKING_MAX_S = 0.010
"""A few milliseconds; the quickest of several calls is measured, since the machine is shared."""


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[FakeDriver, RealTime, CudaDevices, Loop]]:
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
            yield driver, clock, devices, Loop(clock.now)
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


Real = tuple[FakeDriver, RealTime, CudaDevices, Loop]


def test_a_release_in_real_time(real: Real) -> None:
    driver, _, devices, loop = real
    name = devices.open(loop)[0].id
    devices.take([name])
    driver.start(driver.gpus[0], 11, GIB)
    begun = time.monotonic()
    driver.end(11, listed_s=0.05, memory_s=0.1)
    devices.confirm_release([name], 60.0)
    assert loop.until(Released) == Released((name,))
    assert time.monotonic() - begun >= 0.1


def test_nothing_blocks_while_a_gpu_hangs(real: Real) -> None:
    driver, clock, devices, loop = real
    first, second = (device.id for device in devices.open(loop))
    driver.gpus[0].hangs.append((clock.now(), clock.now() + 100_000))
    assert clock.blocks.wait(PATIENCE_S), "its thread is in the middle of a call"

    def look() -> None:
        """Whatever the devices want to do, at once and all of it."""
        actions, loop.wanted = loop.wanted, []
        for action in actions:
            action()

    requests = {
        "confirm_release": lambda: devices.confirm_release([first, second], 60.0),
        "examine": lambda: devices.examine([first]),
        "readmit": lambda: devices.readmit(first),
        "take": lambda: devices.take([second]),
        "readings": devices.readings,
        "look": look,
    }
    slow = {name: quickest(9, work) for name, work in requests.items()}
    assert max(slow.values()) < BLOCKING_MAX_S, slow
    devices.close()  # nor does this wait for it


def test_an_xid_is_heard(real: Real) -> None:
    driver, _, devices, loop = real
    name = devices.open(loop)[0].id
    driver.xid(driver.gpus[0], 79)
    fault = loop.until(Quarantined)
    assert isinstance(fault, Quarantined)
    assert fault.device == name

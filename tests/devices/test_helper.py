"""The devices with helpers that are processes: nothing that the daemon's loop calls ever waits for a driver."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.devices import helper
from gpusched.devices.base import Released
from gpusched.devices.cuda import CudaDevices
from gpusched.devices.release import Processes
from gpusched.processes.identity import children
from tests.devices.box import Loop
from tests.devices.boxed import BOX, name_of
from tests.devices.fake_driver import GIB
from tests.rig import PATIENCE_S, wait_until

BLOCKING_MAX_S = 0.010
"""A few milliseconds; the quickest of several calls is measured, since the machine is shared."""
GPUS = [name_of(0), name_of(1)]
Real = tuple[Path, CudaDevices, Loop]


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    box = tmp_path / "box"
    for name in GPUS:
        (box / name).mkdir(parents=True)
        (box / name / "gpu.json").write_text("{}")
    monkeypatch.setenv("GPU_BOX", str(box))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BOX), *os.sys.path]))
    tmp_path.chmod(0o700)
    devices = CudaDevices(environ={"XDG_STATE_HOME": str(tmp_path)})
    before = helpers_of(devices)
    try:
        yield box, devices, Loop(time.monotonic)
    finally:
        devices.close()
    wait_until(
        lambda: all(pid not in children(os.getpid()) or helper_is_gone(pid) for pid in before),
        "the end of the helpers after close()",
    )


def helpers_of(devices: CudaDevices) -> list[int]:
    """The pid of the process that asks NVML."""
    named = [pid for pid in children(os.getpid()) if b"devices.helper" in command(pid)]
    assert len(named) == 1, "one asks about all GPUs"
    return named


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def helper_is_gone(pid: int) -> bool:
    return b"devices.helper" not in command(pid)


def quickest(calls: int, work: Callable[[], object]) -> float:
    """The shortest duration of ``work()``: what always waits is never quick."""
    gc.collect()
    took = []
    for _ in range(calls):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
        time.sleep(0.001)
    return min(took)


def test_a_release_in_real_time(real: Real) -> None:
    _, devices, loop = real
    name = devices.open(loop)[0].id
    devices.take([name])
    devices.confirm_release([name], PATIENCE_S)
    assert loop.until(Released) == Released((name,))


def test_nothing_blocks_while_a_gpu_hangs(real: Real) -> None:
    box, devices, loop = real
    first, second = (device.id for device in devices.open(loop))
    (box / GPUS[0] / "hangs").touch()
    loop.run_until((box / GPUS[0] / "hung").exists)

    def look() -> None:
        """Whatever the devices want to do, at once and all of it."""
        actions, loop.wanted = loop.wanted, []
        for action in actions:
            action()

    requests: dict[str, Callable[[], object]] = {
        "confirm_release": lambda: devices.confirm_release([first, second], 60.0),
        "take": lambda: devices.take([second]),
        "readings": devices.readings,
        "look": look,
    }
    slow = {name: quickest(9, work) for name, work in requests.items()}
    assert max(slow.values()) < BLOCKING_MAX_S, slow
    devices.close()  # nor does this wait for it


def test_a_helper_that_takes_long_to_die_is_not_forgotten() -> None:
    """Nobody may forget a child that still runs: Python warns, and this suite takes that for an error."""
    process = helper.Helper(Processes())
    process.kill()
    del process
    gc.collect()
    wait_until(
        lambda: all(one.poll() is not None for one in helper.KILLED), "the end of the helper"
    )


def test_a_helper_that_is_killed_is_replaced(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "RETRY_S", 1.0)
    box, devices, loop = real
    devices.open(loop)
    for pid in helpers_of(devices):
        os.kill(pid, signal.SIGKILL)
    for name in GPUS:
        (box / name / str(os.getpid())).touch()
    loop.run_until(lambda: all((one.memory_used_bytes or 0) >= GIB for one in devices.readings()))

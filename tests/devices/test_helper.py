"""The devices with helpers that are processes: nothing that the daemon's loop calls ever waits for a driver."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gpusched.devices import helper
from gpusched.devices.base import DeviceEvent
from gpusched.devices.cuda import CudaDevices
from gpusched.devices.release import Processes
from gpusched.executors.live import Timers
from gpusched.processes.identity import children, read_file
from tests.devices.boxed import GPUS, make_gpus
from tests.devices.fake_nvml import GIB
from tests.rig import wait_until

T = TypeVar("T")


class Loop:
    """The host of the devices on the machine's clock."""

    def __init__(self) -> None:
        self.timers = Timers(time.monotonic)
        self.wanted: list[Callable[[], None]] = []
        self.events: list[DeviceEvent] = []
        self.emit = self.events.append

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.wanted.append(action)
        self.timers.after(delay_s, action)

    def run_until(self, holds: Callable[[], T]) -> T:
        """Run until this is true; what it then is."""

        def asked() -> T:
            self.timers.run_due()
            return holds()

        return wait_until(asked)


Real = tuple[Path, CudaDevices, Loop]


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    environ = make_gpus(tmp_path)
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], *os.sys.path])
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = CudaDevices(experiment=tmp_path / "search")
    assert len(helpers()) == 1, "one asks about all GPUs"
    try:
        yield tmp_path / "box", devices, Loop()
    finally:
        devices.close()
    wait_until(
        lambda: all(one.poll() is not None for one in helper.KILLED) and not helpers(),
        "the end of the helpers after close()",
    )


def helpers() -> list[int]:
    """The pids of the processes that ask NVML."""
    mine = children(os.getpid())
    return [p for p in mine if b"devices.helper" in (read_file(f"/proc/{p}/cmdline") or b"")]


def test_nothing_blocks_while_a_gpu_hangs(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call of the driver never returns, and nobody ends it: whatever waited for it would not return either."""
    box, devices, loop = real
    first, second = (device.id for device in devices.open(loop))
    monkeypatch.setattr(helper, "HANG_MAX_S", math.inf)
    (box / GPUS[0] / "hangs").touch()
    loop.run_until((box / GPUS[0] / "hung").exists)
    devices.confirm_release([first, second], 60.0)
    devices.take([second])
    assert len(devices.readings()) == 2
    for action in tuple(loop.wanted):
        action()
    devices.close()


def test_a_helper_that_takes_long_to_die_is_not_forgotten() -> None:
    """A child that still runs is not forgotten: Python would warn, and this suite takes that for an error."""
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
    for pid in helpers():
        os.kill(pid, signal.SIGKILL)
    for name in GPUS:
        (box / name / str(os.getpid())).touch()
    loop.run_until(lambda: all((one.memory_used_bytes or 0) >= GIB for one in devices.readings()))

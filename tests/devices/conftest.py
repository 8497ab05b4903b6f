"""Fixtures of this folder: a box with a scripted driver, in virtual time. The helpers are imported by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from fake_driver import FakeDriver, FakeGpu, FakeProcesses  # noqa: E402
from fake_nvml import installed  # noqa: E402
from virtual_time import VirtualClock  # noqa: E402

from gpusched.devices.base import Release  # noqa: E402
from gpusched.devices.cuda import CudaDevices  # noqa: E402


def gpu(index: int, **more: Any) -> FakeGpu:
    """A GPU with a recognisable UUID: ``GPU-0a``, ``GPU-1a``, ..."""
    given = {"bus_id": f"00000000:{index + 1:02X}:00.0", "minor": index, **more}
    return FakeGpu(f"GPU-{index}a00-beef", **given)


def with_slices(board: FakeGpu, count: int) -> FakeGpu:
    """The same GPU, cut by MIG."""
    board.mig = True
    board.slices = [
        FakeGpu(f"MIG-{i}c-{board.uuid}", name=f"{board.name} MIG 1g.10gb", total=10 << 30, idle=0)
        for i in range(count)
    ]
    return board


@dataclass
class Box:
    """A machine: its GPUs, its driver, its time, and the devices made on it."""

    driver: FakeDriver
    clock: VirtualClock
    home: Path
    processes: FakeProcesses
    made: list[CudaDevices] = field(default_factory=list)

    @property
    def gpus(self) -> list[FakeGpu]:
        return self.driver.gpus

    def devices(self, spec: str = "cuda", gpus_per_atom: int = 1, **more: Any) -> CudaDevices:
        environ = {"XDG_STATE_HOME": str(self.home), **more.pop("environ", {})}
        given = {"clock": self.clock, "processes": self.processes, "state_dir": self.home, **more}
        devices = CudaDevices.from_spec(spec, gpus_per_atom, environ=environ, **given)
        self.made.append(devices)
        return devices

    def released(self, devices: CudaDevices, names: list[str], within_s: float) -> float | None:
        """After how many seconds all are released, asking as the executor does; None: not in time."""
        begun = self.clock.now()
        while self.clock.now() - begun < within_s:
            if all(release.released for release in devices.released(names)):
                return self.clock.now() - begun
            self.clock.advance(0.05)
        return None

    def readmitted(self, devices: CudaDevices, name: str, within_s: float = 4.0) -> Release:
        """The last answer to somebody who wants it back, asking as the daemon does."""
        until = self.clock.now() + within_s
        release = devices.readmit(name, anew=True)
        while not release.released and self.clock.now() < until:
            self.clock.advance(0.1)
            release = devices.readmit(name)
        return release


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    boxes: list[tuple[Box, Any]] = []

    def make(*gpus: FakeGpu, pids: str = "same") -> Box:
        clock = VirtualClock()
        driver = FakeDriver(list(gpus), clock, pids)
        tmp_path.chmod(0o700)
        box = Box(driver, clock, tmp_path, FakeProcesses(driver, visible=pids == "same"))
        context = installed(driver)
        context.__enter__()
        boxes.append((box, context))
        return box

    yield make
    for box, context in reversed(boxes):
        for devices in box.made:
            devices.close()
        for board in box.gpus:
            board.hangs = []
        box.clock.finish()
        context.__exit__(None, None, None)


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    """Two ordinary GPUs."""
    return make_box(gpu(0), gpu(1))


def begin(box: Box, spec: str = "cuda", **more: object) -> tuple[CudaDevices, list[str]]:
    devices = box.devices(spec, **more)
    return devices, [device.id for device in devices.inventory()]


def run_trial(box: Box, devices: CudaDevices, name: str, pid: int, memory: int = 10 << 30) -> None:
    devices.placement([name])
    board = next(g for g in box.driver.everything() if g.uuid == name)
    box.driver.start(board, pid, memory)
    box.clock.advance(2.0)
    assert devices.faults() == ()

"""A box with a scripted driver, in virtual time; ``make_box`` and ``box`` are fixtures that each ``conftest`` names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpusched.devices import cuda
from gpusched.devices.base import (
    Device,
    DeviceEvent,
    DeviceRemark,
    Quarantined,
    Readmitted,
    Released,
)
from gpusched.devices.cuda import LOOK_EVERY_S, CudaDevices
from tests.devices.fake_nvml import FakeDriver, FakeGpu, FakeProcesses, installed
from tests.devices.virtual_time import VirtualClock

LIMIT_S = 60.0
Told = TypeVar("Told", bound=DeviceEvent)


def gpu(index: int, **more: Any) -> FakeGpu:
    """A GPU with a recognisable UUID: ``GPU-0a``, ``GPU-1a``, ..."""
    given = {"bus_id": f"00000000:{index + 1:02X}:00.0", **more}
    return FakeGpu(f"GPU-{index}a00-beef", **given)


class Watched:
    """Devices, their host in virtual time, and what they have told."""

    def __init__(self, devices: CudaDevices, clock: VirtualClock) -> None:
        self.devices = devices
        self.clock = clock
        self.events: list[DeviceEvent] = []
        self.notes: list[str] = []
        self.after = clock.after

    def emit(self, event: DeviceEvent) -> None:
        if isinstance(event, DeviceRemark):
            self.notes.append(event.text)
        else:
            self.events.append(event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.devices, name)

    def open(self) -> tuple[Device, ...]:
        return self.devices.open(self)

    def told(self, kind: type[Told]) -> list[Told]:
        """The events of one kind since they were last asked for."""
        found = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return found

    def faults(self) -> tuple[Quarantined, ...]:
        """The devices that went bad, once all have been looked at."""
        self.clock.advance(LOOK_EVERY_S)
        return tuple(self.told(Quarantined))

    def recovered(self) -> tuple[str, ...]:
        """The devices that are back."""
        return tuple(event.device for event in self.told(Readmitted))

    def waits_for(self, name: str) -> str:
        """Why a device is not released, as people read it."""
        (reading,) = (reading for reading in self.readings() if reading.device == name)
        return " ".join(note for note in reading.notes if note.startswith("not released yet: "))

    def released(self, names: list[str], within_s: float) -> float | None:
        """After how many seconds all are released; None: not in time."""
        begun, waiting = self.clock.now(), set(names)
        self.confirm_release(names, LIMIT_S)
        while self.clock.now() - begun < within_s:
            waiting -= {name for event in self.told(Released) for name in event.devices}
            if not waiting:
                return self.clock.now() - begun
            self.clock.advance(0.05)
        return None


@dataclass
class Box:
    """A machine: its GPUs, its driver, its time, and the devices made on it."""

    driver: FakeDriver
    clock: VirtualClock
    home: Path
    made: list[Watched] = field(default_factory=list)

    @property
    def gpus(self) -> list[FakeGpu]:
        return self.driver.gpus

    def devices(self, spec: str = "cuda", **options: Any) -> Watched:
        devices = CudaDevices(spec, **{"experiment": self.home / "search", **options})
        self.made.append(Watched(devices, self.clock))
        return self.made[-1]


@contextlib.contextmanager
def scripted(driver: FakeDriver, home: Path) -> Iterator[None]:
    """Have devices meet this driver, its time and its processes, and keep their leases in ``home``."""
    with installed(driver), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "World", lambda: driver.time)
        patch.setattr(cuda, "Processes", lambda *_: FakeProcesses(driver))
        patch.setenv("XDG_STATE_HOME", str(home))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    tmp_path.chmod(0o700)
    with contextlib.ExitStack() as stack:

        def make(*gpus: FakeGpu, pids: str = "same") -> Box:
            clock = VirtualClock()
            driver = FakeDriver(list(gpus), clock, pids)
            stack.enter_context(scripted(driver, tmp_path))
            box = Box(driver, clock, tmp_path)
            stack.callback(lambda: [devices.close() for devices in box.made])
            return box

        yield make


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    """Two ordinary GPUs."""
    return make_box(gpu(0), gpu(1))


def begin(box: Box, spec: str = "cuda", **more: object) -> tuple[Watched, list[str]]:
    devices = box.devices(spec, **more)
    return devices, [device.id for device in devices.open()]


def run_trial(box: Box, devices: Watched, name: str, pid: int, memory: int = 10 << 30) -> None:
    devices.take([name])
    board = next(g for g in box.gpus if g.uuid == name.partition("#")[0])
    box.driver.start(board, pid, memory)
    box.clock.advance(2.0)
    assert devices.told(Quarantined) == []

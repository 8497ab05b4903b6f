"""A box with a scripted driver, in virtual time; ``make_box`` and ``box`` are fixtures that each ``conftest`` names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpusched.devices.base import (
    Device,
    DeviceEvent,
    DeviceRemark,
    Quarantined,
    Readmitted,
    Released,
)
from gpusched.devices.cuda import LOOK_EVERY_S, CudaDevices
from gpusched.executors.live import Timers
from tests.devices.fake_driver import FakeDriver, FakeGpu, FakeProcesses
from tests.devices.fake_nvml import installed
from tests.devices.virtual_time import VirtualClock
from tests.rig import wait_until

LIMIT_S = 60.0
Told = TypeVar("Told", bound=DeviceEvent)
T = TypeVar("T")


def gpu(index: int, **more: Any) -> FakeGpu:
    """A GPU with a recognisable UUID: ``GPU-0a``, ``GPU-1a``, ..."""
    given = {"bus_id": f"00000000:{index + 1:02X}:00.0", "minor": index, **more}
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


class Loop:
    """The host of the devices on the machine's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.timers = Timers(now)
        self.wanted: list[Callable[[], None]] = []
        self.events: list[DeviceEvent] = []

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.wanted.append(action)
        self.timers.after(delay_s, action)

    def emit(self, event: DeviceEvent) -> None:
        self.events.append(event)

    def until(self, wanted: type[DeviceEvent]) -> DeviceEvent:
        """Run until such an event comes."""

        return self.run_until(lambda: [e for e in self.events if isinstance(e, wanted)])[0]

    def run_until(self, holds: Callable[[], T]) -> T:
        """Run until this is true; what it then is."""

        def asked() -> T:
            self.timers.run_due()
            return holds()

        return wait_until(asked)

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.005)
            self.timers.run_due()


@dataclass
class Box:
    """A machine: its GPUs, its driver, its time, and the devices made on it."""

    driver: FakeDriver
    clock: VirtualClock
    home: Path
    processes: FakeProcesses
    made: list[Watched] = field(default_factory=list)

    @property
    def gpus(self) -> list[FakeGpu]:
        return self.driver.gpus

    def devices(self, spec: str = "cuda", **more: Any) -> Watched:
        environ = {"XDG_STATE_HOME": str(self.home), **more.pop("environ", {})}
        given = {"world": self.clock, "processes": self.processes, **more}
        devices = CudaDevices(spec, environ=environ, **given)
        self.made.append(Watched(devices, self.clock))
        return self.made[-1]


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
        context.__exit__(None, None, None)


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

"""Requests to the devices and their events as the core's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from gpusched.core.events import DeviceQuarantined, DeviceReadmitted, DevicesReleased, Event
from gpusched.devices.base import (
    Device,
    DeviceRemark,
    Host,
    Placement,
    Quarantined,
    Reading,
    Readmitted,
    Released,
    Strangers,
)
from gpusched.executors.live import Timers
from gpusched.executors.local.inventory import Inventory

LIMIT_S = 60.0


class Scripted:
    """``Devices`` that do nothing by themselves; notes what they are asked."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def open(self, host: Host) -> tuple[Device, ...]:
        self.asked.append(("open",))
        return (Device("a", "A"), Device("b", "B"))

    def place(self, devices: Sequence[str]) -> Placement:
        raise NotImplementedError

    def take(self, devices: Sequence[str]) -> None:
        raise NotImplementedError

    def drain(self, devices: Sequence[str]) -> None:
        self.asked.append(("drain", *devices))

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        self.asked.append(("confirm_release", *devices, limit_s))

    def keep_out(self, device: str, reason: str) -> None:
        self.asked.append(("keep_out", device, reason))

    def readings(self) -> tuple[Reading, ...]:
        return ()

    def close(self) -> None:
        raise NotImplementedError


class Bench:
    """An inventory, its time, and what came of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Event] = []
        self.said: list[str] = []
        self.devices = Scripted()
        self.timers = Timers(lambda: self.now)
        self.inventory = Inventory(
            self.devices,
            self.timers,
            self.events.append,
            self.said.append,
            LIMIT_S,
        )

    def run(self, until: float) -> None:
        while self.timers.next_at <= until:
            self.now = self.timers.next_at
            self.timers.run_due()
        self.now = until


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_devices_are_opened_once(bench: Bench) -> None:
    assert bench.inventory.open() == bench.inventory.open() == (Device("a", "A"), Device("b", "B"))
    assert bench.devices.asked == [("open",)]


def test_events_of_devices_are_the_cores(bench: Bench) -> None:
    bench.now = 3.0
    told = (Released(("a", "b")), Quarantined("a", "lost"), Readmitted("b"))
    for event in told:
        bench.inventory.emit(event)
    assert bench.events == [
        DevicesReleased(at=3.0, devices=("a", "b")),
        DeviceQuarantined(at=3.0, device="a", reason="lost"),
        DeviceReadmitted(at=3.0, device="b"),
    ]
    bench.inventory.emit(DeviceRemark("no GPU error events"))
    assert bench.said == ["no GPU error events"]


def test_strangers_are_those_who_were_seen_last(bench: Bench) -> None:
    bench.inventory.emit(Strangers("a", ("pid 9 (bob: x)",)))
    bench.inventory.emit(Strangers("b", ("pid 8 (eve: y)",)))
    assert bench.inventory.strangers(["a"]) == ("pid 9 (bob: x)",)
    assert bench.inventory.strangers(["a", "b"]) == ("pid 9 (bob: x)", "pid 8 (eve: y)")
    bench.inventory.emit(Strangers("a", ()))
    assert bench.inventory.strangers(["a"]) == ()

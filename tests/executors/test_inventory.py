"""Requests to the devices and their events as the core's, in simulated time; processes that cannot be killed."""

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
    ReadmitRefused,
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

    def readmit(self, device: str) -> None:
        self.asked.append(("readmit", device))

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


class Stuck:
    """Processes that SIGKILL does not end for a while."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self) -> int:
        self.rounds -= 1
        return max(0, self.rounds)

    def describe(self) -> str:
        return "process 77 (train.py)"


def test_the_devices_are_opened_once(bench: Bench) -> None:
    assert bench.inventory.open() == bench.inventory.open() == (Device("a", "A"), Device("b", "B"))
    assert bench.devices.asked == [("open",)]


def test_events_of_devices_are_the_cores(bench: Bench) -> None:
    bench.now = 3.0
    told = (Released(("a", "b")), Quarantined("a", "lost", passing=True), Readmitted("b"))
    for event in told:
        bench.inventory.emit(event)
    assert bench.events == [
        DevicesReleased(at=3.0, devices=("a", "b")),
        DeviceQuarantined(at=3.0, device="a", reason="lost", passing=True),
        DeviceReadmitted(at=3.0, device="b"),
    ]
    bench.inventory.emit(DeviceRemark("no GPU error events"))
    assert bench.said == ["no GPU error events"]


def test_everybody_who_asks_for_a_device_gets_the_answer(bench: Bench) -> None:
    answers: list[str] = []
    for _ in range(2):
        bench.inventory.readmit("a", answers.append)
    assert answers == []
    bench.inventory.emit(ReadmitRefused("a", "the GPU is lost"))
    assert answers == ["the GPU is lost"] * 2
    bench.inventory.readmit("a", answers.append)
    bench.inventory.emit(Readmitted("a"))
    assert answers[2:] == [""]


def test_strangers_are_those_who_were_seen_last(bench: Bench) -> None:
    bench.inventory.emit(Strangers("a", ("pid 9 (bob: x)",)))
    bench.inventory.emit(Strangers("b", ("pid 8 (eve: y)",)))
    assert bench.inventory.strangers(["a"]) == ("pid 9 (bob: x)",)
    assert bench.inventory.strangers(["a", "b"]) == ("pid 9 (bob: x)", "pid 8 (eve: y)")
    bench.inventory.emit(Strangers("a", ()))
    assert bench.inventory.strangers(["a"]) == ()


def test_a_device_is_not_free_while_a_process_of_ours_cannot_be_killed(bench: Bench) -> None:
    bench.inventory.hold(["a"], Stuck(5))
    bench.inventory.drain(["a", "b"])
    bench.inventory.confirm_release(["a", "b"])
    assert bench.devices.asked == [("drain", "b"), ("confirm_release", "b", LIMIT_S)]
    bench.run(10.0)
    assert bench.devices.asked[2:] == [("drain", "a"), ("confirm_release", "a", LIMIT_S - 2.0)]
    bench.inventory.confirm_release(["a"])
    assert bench.devices.asked[4:] == [("confirm_release", "a", LIMIT_S)]


def test_after_the_limit_it_is_given_up_with_its_holder(bench: Bench) -> None:
    bench.now = 4.508171032151748
    bench.inventory.hold(["a"], Stuck(10_000))
    bench.inventory.confirm_release(["a"])
    bench.run(40.0)
    bench.inventory.confirm_release(["a"])  # asked for twice, the first time counts
    bench.run(200.0)
    (given_up,) = bench.events
    assert isinstance(given_up, DeviceQuarantined)
    assert given_up.at == pytest.approx(4.508 + LIMIT_S, abs=0.1)
    assert given_up.reason == "not released after 60 s: held by process 77 (train.py)"
    assert bench.devices.asked == []
    answers: list[str] = []
    bench.inventory.readmit("a", answers.append)
    assert answers == ["held by process 77 (train.py)"]


def test_once_its_holder_has_ended_after_all_it_is_left_to_the_devices(bench: Bench) -> None:
    bench.inventory.hold(["a"], Stuck(150))
    bench.inventory.confirm_release(["a"])
    bench.run(70.0)
    (given_up,) = bench.events
    assert isinstance(given_up, DeviceQuarantined)
    assert given_up.passing
    assert bench.devices.asked == []
    bench.run(500.0)
    assert bench.devices.asked == [("drain", "a"), ("keep_out", "a", given_up.reason)]


def test_what_went_bad_meanwhile_is_waited_for_no_more(bench: Bench) -> None:
    bench.inventory.hold(["a"], Stuck(10_000))
    bench.inventory.confirm_release(["a"])
    bench.run(10.0)
    bench.inventory.emit(Quarantined("a", "the GPU is lost"))
    bench.run(200.0)
    assert [type(event) for event in bench.events] == [DeviceQuarantined]

"""Devices that go bad, come back or are asked for, as events: ``Inspection`` on a scripted driver."""

from __future__ import annotations

from conftest import Box, begin, run_trial
from fake_driver import GIB

from gpusched.core.events import DeviceQuarantined, DeviceReadmitted, Event
from gpusched.devices.base import Release
from gpusched.devices.cuda import CudaDevices
from gpusched.executors.local.inspection import Inspection
from gpusched.executors.local.timers import Timers


class Watched:
    """An inspection, and what came of it."""

    def __init__(self, box: Box, devices: CudaDevices) -> None:
        self.clock = box.clock
        self.timers = Timers(box.clock.now)
        self.events: list[Event] = []
        self.said: list[str] = []
        self.answers: list[Release] = []
        self.inspection = Inspection(
            devices, self.timers, box.clock.now, self.events.append, self.said.append
        )

    def run(self, seconds: float) -> list[Event]:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.clock.advance(0.1)
            self.timers.run_due()
        found, self.events[:] = list(self.events), []
        return found


def test_a_stranger_comes_and_goes(box: Box) -> None:
    devices, names = begin(box)
    watched = Watched(box, devices)
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    (came,) = watched.run(5.0)
    assert isinstance(came, DeviceQuarantined)
    assert (came.device, came.passing) == (names[0], True)
    assert "alice" in came.reason
    box.driver.end(99)
    (went,) = watched.run(8.0)
    assert isinstance(went, DeviceReadmitted)
    assert went.device == names[0]


def test_what_the_inventory_has_told_is_not_told_again(box: Box) -> None:
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    devices, names = begin(box)
    watched = Watched(box, devices)
    watched.inspection.listed(devices.inventory())
    assert watched.run(5.0) == []
    box.gpus[0].lost_from = box.clock.now()
    (lost,) = watched.run(5.0)
    assert isinstance(lost, DeviceQuarantined)
    assert (lost.device, lost.passing) == (names[0], False)


def test_a_lost_gpu_comes_back_only_for_whoever_asks(box: Box) -> None:
    devices, names = begin(box)
    watched = Watched(box, devices)
    box.gpus[0].lost_from = box.clock.now()
    (lost,) = watched.run(5.0)
    assert isinstance(lost, DeviceQuarantined)
    assert not lost.passing
    watched.inspection.readmit(names[0], watched.answers.append)
    assert watched.run(6.0) == []
    (refused,) = watched.answers
    assert not refused.released
    assert "lost" in refused.holder
    box.gpus[0].lost_until = box.clock.now()  # somebody has reset it
    assert watched.run(8.0) == [], "by itself it does not come back"
    watched.inspection.readmit(names[0], watched.answers.append)
    (back,) = watched.run(6.0)
    assert isinstance(back, DeviceReadmitted)
    assert watched.answers[-1].released


def test_what_was_out_before_a_restart_is_taken_up_when_it_is_clean(box: Box) -> None:
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    devices, names = begin(box)
    for name in names:
        devices.keep_out(name, "busy when the last daemon ended")
    watched = Watched(box, devices)
    (free,) = watched.run(6.0)
    assert isinstance(free, DeviceReadmitted)
    assert free.device == names[1], "the other one is still hers"
    box.driver.end(99)
    assert [type(event) for event in watched.run(8.0)] == [DeviceReadmitted]


def test_what_must_be_said_is_said_once(box: Box) -> None:
    for gpu in box.gpus:
        gpu.event_types = 0
    devices, _ = begin(box)
    watched = Watched(box, devices)
    watched.run(10.0)
    assert watched.said == devices.notes
    assert len(watched.said) == len(set(watched.said)) >= 1


def test_two_who_ask_at_the_same_time_get_one_answer_and_one_device(box: Box) -> None:
    devices, names = begin(box)
    watched = Watched(box, devices)
    box.driver.xid(box.gpus[0], 79)
    watched.run(2.0)
    for _ in range(2):
        watched.inspection.readmit(names[0], watched.answers.append)
        watched.run(0.5)
    told = watched.run(5.0)
    assert [type(event) for event in told] == [DeviceReadmitted]
    assert [answer.released for answer in watched.answers] == [True, True]


def test_of_two_faults_that_of_the_idle_gpu_is_told_first(box: Box) -> None:
    """Who has to leave the other one must not be sent there."""
    devices, names = begin(box)
    run_trial(box, devices, names[0], 11)
    watched = Watched(box, devices)
    box.driver.start(box.gpus[1], 99, GIB, user="alice", command="python hers.py", ours=False)
    box.gpus[0].lost_from = box.clock.now()
    told = [event for event in watched.run(5.0) if isinstance(event, DeviceQuarantined)]
    assert [event.device for event in told] == [names[1], names[0]]

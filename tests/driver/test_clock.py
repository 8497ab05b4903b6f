"""The experiment's clock: no step of the wall clock, no suspend and no reboot moves a deadline (reliability F9)."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gpusched.driver import assemble as clock
from gpusched.driver.assemble import Beginning, ExperimentClock


class Machine:
    """A machine's two clocks, and which boot it is in."""

    def __init__(self) -> None:
        self.wall, self.boottime, self.boot = 1e9, 500.0, "first"

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.boottime += seconds

    def reboot(self, after_s: float) -> None:
        self.wall += after_s
        self.boottime, self.boot = 7.0, "second"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock.time, "time", lambda: made.wall)
    monkeypatch.setattr(clock, "boottime_s", lambda: made.boottime)
    monkeypatch.setattr(clock, "boot_id", lambda: made.boot)
    return made


def resumed(beginning: Beginning, at_least_s: float = 0.0) -> ExperimentClock:
    """As the next daemon makes it, from what is on the disk."""
    return ExperimentClock(
        Beginning(**json.loads(json.dumps(dataclasses.asdict(beginning)))), at_least_s=at_least_s
    )


def test_steps_of_the_wall_clock_move_nothing(machine: Machine) -> None:
    beginning = Beginning.now()
    running = ExperimentClock(beginning)
    machine.pass_by(60)
    machine.wall -= 3600
    assert running() == 60
    assert resumed(beginning)() == 60
    machine.wall += 86_400
    assert running() == 60


def test_a_reboot_is_bridged_by_the_wall_clock(machine: Machine) -> None:
    beginning = Beginning.now()
    machine.pass_by(60)
    machine.reboot(after_s=90)
    again = resumed(beginning, at_least_s=60)
    assert again() == 150
    machine.pass_by(5)
    machine.wall -= 3600
    assert again() == 155, "once: then the boot's own clock counts"


def test_after_a_reboot_with_a_wrong_clock_time_goes_on_where_it_was(machine: Machine) -> None:
    beginning = Beginning.now()
    machine.pass_by(60)
    machine.reboot(after_s=-1e8)
    assert resumed(beginning, at_least_s=58.5)() == 58.5


def test_time_never_goes_back_behind_the_journal(machine: Machine) -> None:
    beginning = dataclasses.replace(Beginning.now(), boottime_s=machine.boottime + 100)
    assert resumed(beginning, at_least_s=42)() == 42

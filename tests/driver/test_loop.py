"""The loop: journal, sync, then act; answers that need no sync; timers and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpusched.core.commands import Command, ConfirmRelease, Yield
from gpusched.core.decisions import Pause, Start, WakeAt
from gpusched.core.events import (
    Event,
    LimitsMoved,
    TimerFired,
    TrialExited,
    UserAsked,
)
from gpusched.driver.loop import COMMIT_EVERY_S, Driver
from gpusched.errors import Fenced
from gpusched.journal.log import Journal
from tests.core import stages
from tests.helpers import Script
from tests.notebook import Notebook, on_disk, report

# ---------------------------------------------------------------- the order of effects


def test_nothing_is_done_before_it_is_on_disk(path: Path, journal: Journal) -> None:
    script = stages.running().decides(Pause(0))
    seen_by_executor: list[list[tuple[str, list[Command]]]] = []

    class Suspicious(Notebook):
        def execute(self, command: Command) -> None:
            seen_by_executor.append(on_disk(path))

    driver = Driver(script.experiment, Suspicious([[report()]]), journal)
    driver.turn()
    assert seen_by_executor == [[("Reported", [Yield(0, 1, save=True)])]]


FOR_EVER = float("inf")


def test_an_answer_of_go_on_waits_for_no_disk(path: Path, journal: Journal) -> None:
    executor = Notebook([[report()]])
    driver = Driver(stages.running(deadline_s=FOR_EVER).experiment, executor, journal)
    driver.turn()
    assert executor.told == [("go on", 0, 2)]
    assert on_disk(path) == []
    driver.turn()
    assert executor.clock == 2.0 + COMMIT_EVERY_S
    assert on_disk(path) == [("Reported", [])]
    with pytest.raises(AssertionError, match="for ever"):
        driver.turn()


def test_what_happened_at_once_is_synced_at_once(path: Path, journal: Journal) -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().saved(0, 1).drop().report(1, 0.4).drop()
    script.decides(Pause(0))
    executor = Notebook([[report(0), report(1, metric=0.3)]])
    Driver(script.experiment, executor, journal).turn()
    assert executor.told == [("go on", 1, 2), Yield(0, 1, save=True), ("go on", 0, 2)]
    assert [kind for kind, _ in on_disk(path)] == ["Reported", "Reported"]


def test_without_a_journal_nothing_waits() -> None:
    executor = Notebook([[report()], [report(seq=3, at=9.0)]])
    driver = Driver(stages.running(deadline_s=FOR_EVER).experiment, executor)
    driver.turn()
    driver.turn()
    assert executor.waited_until == [FOR_EVER] * 2


@pytest.mark.parametrize(
    ("decisions", "effects"), [([Pause(0)], [Yield(0, 1, save=True)]), ([], [])]
)
def test_people_are_told_of_nothing_that_is_not_on_disk(
    path: Path, journal: Journal, decisions: list[Pause], effects: list[Command]
) -> None:
    """Of what has no effects they were told a while before, and a daemon that died then had forgotten it."""
    seen: list[tuple[Event, list[Command]]] = []
    told: list[list[tuple[str, list[Command]]]] = []

    def observe(event: Event, commands: Sequence[Command]) -> Callable[[], None]:
        seen.append((event, list(commands)))
        return lambda: told.append(on_disk(path))

    script = stages.running().decides(*decisions)
    driver = Driver(script.experiment, Notebook([[report()]]), journal, observer=observe)
    driver.turn()
    assert seen == [(report(), effects)]
    driver.turn()
    assert told[0] == [("Reported", effects)]


def test_the_wish_of_a_person_is_on_disk_at_once(path: Path, journal: Journal) -> None:
    """A person who has been told that a wish is granted loses nothing when the daemon dies at once."""
    script = Script(devices=1).wants(Start(1)).start().drop().report(0).drop()
    driver = Driver(script.experiment, Notebook(), journal)
    driver.handle([LimitsMoved(at=2.0, deadline_s=3000.0)])
    driver.handle([UserAsked(at=2.0, verb="try", hparams={"lr": 0.1})])
    assert [kind for kind, _ in on_disk(path)] == ["LimitsMoved", "UserAsked"]
    assert int(path.with_name(path.name + "-mark").read_bytes()[:16]) == 2, "and synced"


def test_a_daemon_that_was_overtaken_carries_nothing_out() -> None:
    def fence() -> None:
        raise Fenced(1, 2)

    executor = Notebook([[report()]])
    driver = Driver(stages.running().decides(Pause(0)).experiment, executor, fence=fence)
    with pytest.raises(Fenced):
        driver.turn()
    assert executor.told == []


# ---------------------------------------------------------------- timers, forecasts, the end


def test_timers_fire_at_their_time_and_in_their_order() -> None:
    script = stages.running().decides(WakeAt(30.0), WakeAt(20.0))
    executor = Notebook([[report()]])
    fired: list[tuple[str, float]] = []

    def observe(event: Event, _: object) -> None:
        if isinstance(event, TimerFired):
            fired.append((event.timer, event.at))

    driver = Driver(script.experiment, executor, observer=observe)
    driver.turn()
    timers = driver.experiment.state.timers
    assert timers == {"deadline": 1000.0, "wake": 20.0}, "a timer set again moves"
    driver.handle([report(seq=3)])
    timers["watch"] = 15.0
    driver.turn()
    driver.turn()
    assert fired[:2] == [("watch", 15.0), ("wake", 20.0)]


def test_a_timer_of_the_past_fires_at_once() -> None:
    executor = Notebook(clock=50.0)
    driver = Driver(stages.running(deadline_s=40.0).experiment, executor)
    driver.turn()
    assert executor.clock == 50.0
    assert driver.experiment.state.stopping == "deadline"
    assert executor.told == [Yield(0, 1, save=True)]


def test_waiting_ends_at_the_time_the_caller_gives() -> None:
    executor = Notebook()
    Driver(stages.running().experiment, executor).turn(at_most=7.0)
    assert executor.waited_until == [7.0]


def test_it_runs_until_it_is_over_and_everything_is_on_disk(path: Path, journal: Journal) -> None:
    script = stages.stopping(max_trials=1)
    gone = TrialExited(at=3.0, trial=0, incarnation=1, outcome="yielded")
    executor = Notebook([[gone, UserAsked(at=3.0, verb="stop")]])
    Driver(script.experiment, executor, journal, check=True).run()
    assert executor.told == [ConfirmRelease(("d0",))]
    assert [kind for kind, _ in on_disk(path)] == ["TrialExited", "UserAsked"]

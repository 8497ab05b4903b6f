"""A full disk: nothing more is carried out, the trials train on, and when there is room again nothing is missing.

The error is SQLite's own, by a limit on the pages of the database. A full file system: ``e2e/test_full_disk.py``.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest

from gpusched.core.commands import Command, KeepBest, Kill, Save
from gpusched.core.events import TrialExited, UserAsked
from gpusched.driver.loop import RETRY_EVERY_S, Driver
from gpusched.journal.log import Journal
from gpusched.sim.setup import experiment, recipe
from gpusched.sim.study import start
from tests.core import stages
from tests.crashes import check_journal
from tests.driver.test_crashes import SETUPS
from tests.faults import FaultyExecutor
from tests.notebook import Notebook, on_disk, report

SETUP = SETUPS["hypersched"]


class Watched(FaultyExecutor):
    """Notes when commands are carried out; kills, which do not wait for the disk, on their own."""

    carried_out_at: list[float]
    kills: list[Kill]

    def execute(self, command: Command) -> None:
        if isinstance(command, Kill):
            self.kills.append(command)
        elif not (isinstance(command, Save) and command.hold):  # a copy in memory is no effect
            self.carried_out_at.append(self.now())
        super().execute(command)


def begun(path: Path, **more: Any) -> tuple[Driver, Watched, Journal]:
    """A search whose devices have joined."""
    executor = SETUP.machine()
    executor.__class__ = Watched
    assert isinstance(executor, Watched)
    executor.carried_out_at, executor.kills = [], []
    journal = Journal.create(path, {})
    search = experiment(recipe(SETUP))
    driver = Driver(search, executor, journal, check=True, **more)
    start(driver, executor)
    return driver, executor, journal


def _limit_pages(journal: Journal, pages: int) -> None:
    journal.connection.execute(f"PRAGMA max_page_count={pages}")


def test_while_the_disk_is_full_nothing_is_done_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    driver, executor, journal = begun(path)
    while executor.now() < 0.5:
        driver.turn()
    _limit_pages(journal, 1)
    while driver.stalled is None:
        driver.turn()
    assert "full" in driver.stalled
    full_at, done_before = executor.now(), len(executor.carried_out_at)
    reports_before, written = executor.reports, on_disk(path)
    while executor.now() < full_at + 1.0:
        driver.turn()
    assert len(executor.carried_out_at) == done_before, "no effect without a sync"
    assert on_disk(path) == written
    assert driver.stalled is not None
    assert executor.reports >= reports_before
    _limit_pages(journal, 1_000_000)
    driver.run()
    assert driver.stalled is None
    assert driver.experiment.state.finished
    assert len(executor.carried_out_at) > done_before
    journal.close()
    check_journal(path, driver.experiment, SETUP)


def test_with_a_reserve_the_search_ends_on_a_full_disk(tmp_path: Path) -> None:
    pages = 1

    def give() -> bool:
        nonlocal pages
        pages += 4
        _limit_pages(journal, pages)
        return True

    driver, _, journal = begun(tmp_path / "journal.db", spare=give)
    _limit_pages(journal, pages)
    while not driver.experiment.state.finished:
        driver.turn()
        assert driver.stalled is None, driver.stalled
    assert pages > 5, "the disk was full more than once"
    journal.close()
    check_journal(tmp_path / "journal.db", driver.experiment, SETUP)


def test_a_full_disk_is_tried_again_once_a_second_whatever_is_reported(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal.db", {})
    executor = Notebook([[report()]])
    driver = Driver(stages.running().experiment, executor, journal)
    _limit_pages(journal, 1)
    journal.append(UserAsked(at=0.0, verb="unpause", trial=99), [KeepBest(0, 1, 0.5, 1)] * 200)
    driver.turn()
    while driver.stalled is None:
        driver.turn()
    full_at = executor.clock
    executor.to_say.append([report(seq=3, at=full_at + 0.1)])
    driver.turn()
    driver.turn()
    assert executor.waited_until[-1] == full_at + RETRY_EVERY_S
    journal.abandon()


@pytest.mark.parametrize("verb", ["cancel", "kill"])
def test_it_ends_only_when_its_end_is_on_disk(
    tmp_path: Path, verb: Literal["cancel", "kill"]
) -> None:
    path = tmp_path / "journal.db"
    driver, executor, journal = begun(path)
    _limit_pages(journal, 1)
    while driver.stalled is None:
        driver.handle([UserAsked(at=0.0, verb="unpause", trial=99)] * 20)
        driver._settle()
    driver.handle([UserAsked(at=0.0, verb=verb)])
    assert len({kill.trial for kill in executor.kills}) == executor.launches > 0, (
        "whoever ends a search on a full disk ends it"
    )
    for trial in list(driver.experiment.state.live.values()):
        gone = TrialExited(at=0.0, trial=trial.id, incarnation=trial.incarnation, outcome="killed")
        driver.handle([gone])
    assert driver.experiment.state.finished
    assert executor.carried_out_at == [0.0] * executor.launches
    for _ in range(3):
        before = executor.now()
        driver.turn()
        assert driver.stalled is not None
        assert executor.now() >= before
    _limit_pages(journal, 1_000_000)
    driver.run()
    assert driver.stalled is None
    journal.close()
    check_journal(path, driver.experiment, SETUP)


def test_any_other_failure_to_write_is_fatal(tmp_path: Path) -> None:
    driver, executor, journal = begun(tmp_path / "journal.db")
    done = len(executor.carried_out_at)
    with sqlite3.connect(tmp_path / "journal.db") as other:
        other.execute("DROP TABLE events")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        driver.handle([UserAsked(at=0.0, verb="stop")])
    assert (len(executor.carried_out_at), executor.kills) == (done, [])
    journal.abandon()

"""A kept journal can be resumed by today's code: the same commands, and the search ends as it did."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from gpusched.driver.loop import replay
from gpusched.journal.log import Journal

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "journal.db"


@pytest.fixture
def maker() -> ModuleType:
    """scripts/make_golden_journal.py"""
    path = ROOT / "scripts" / "make_golden_journal.py"
    spec = importlib.util.spec_from_file_location("make_golden_journal", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    shutil.copy(GOLDEN, tmp_path / "journal.db")
    return Journal.open(tmp_path / "journal.db")


def test_it_replays_to_the_same_end(journal: Journal, maker: ModuleType) -> None:
    meta = journal.meta
    experiment = maker.experiment(meta["setup"])
    replay(experiment, journal.entries())
    journal.close()
    experiment.check()
    assert experiment.state.finished
    assert maker.outcome(experiment) == meta["outcome"]


def test_it_is_worth_keeping(journal: Journal) -> None:
    """Nearly everything that can happen is in the journal."""
    events, commands = Counter[str](), Counter[str]()
    for entry in journal.entries():
        events[type(entry.event).__name__] += 1
        commands.update(type(command).__name__ for command in entry.commands)
    journal.close()
    assert set(events) >= {
        *("DevicesJoined", "TrialUp", "Reported", "CheckpointSaved", "TrialExited"),
        *("DevicesReleased", "QuarantineChanged", "TimerFired", "UserAsked"),
        "DaemonResumed",
    }
    assert set(commands) >= {*("Launch", "Yield", "Save", "Kill", "ConfirmRelease", "KeepBest")}
    assert events["Reported"] > 150
    assert commands["Launch"] > 20


def test_making_it_again_gives_an_experiment_that_can_be_replayed(
    maker: ModuleType, tmp_path: Path
) -> None:
    recorded = maker.record(tmp_path / "journal.db")
    journal = Journal.open(tmp_path / "journal.db")
    again = maker.experiment(journal.meta["setup"])
    replay(again, journal.entries())
    journal.close()
    assert maker.outcome(again) == maker.outcome(recorded)

"""Every released journal can be resumed by today's code: the same commands, and the experiment ends as it did."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from gpusched.driver.loop import replay
from gpusched.errors import ReplayDiverged
from gpusched.journal.log import Journal
from gpusched.journal.rows import FORMAT

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "golden"
GOLDEN = sorted(FOLDER.glob("journal-v*.db"))


@pytest.fixture
def maker() -> ModuleType:
    """scripts/make_golden_journal.py"""
    path = ROOT / "scripts" / "make_golden_journal.py"
    spec = importlib.util.spec_from_file_location("make_golden_journal", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    shutil.copy(request.param, tmp_path / "journal.db")
    return Journal.open(tmp_path / "journal.db")


def test_there_is_one_of_the_present_format() -> None:
    names = [path.name for path in GOLDEN]
    assert f"journal-v{FORMAT}.db" in names, "run scripts/make_golden_journal.py"


def test_it_replays_to_the_same_end(journal: Journal, maker: ModuleType) -> None:
    meta = journal.meta
    experiment = maker.experiment(meta["setup"])
    replay(experiment, journal.entries())
    journal.close()
    experiment.check()
    assert experiment.finished
    assert maker.outcome(experiment) == meta["outcome"]


@pytest.mark.parametrize(
    ("version", "name"),
    [(1, "hermes"), (1, "pop"), (1, "hypersched-sizes"), (7, "pop")],
)
def test_a_search_goes_on_under_the_rules_it_began_with(
    version: int, name: str, maker: ModuleType, tmp_path: Path
) -> None:
    """Recorded before rules were mended (``core/rules.py``): under the next ones each would have decided otherwise."""
    recorded = FOLDER / f"rules-{version}" / f"{name}.db"
    shutil.copy(recorded, tmp_path / "journal.db")
    journal = Journal.open(tmp_path / "journal.db")
    setup, outcome = journal.meta["setup"], journal.meta["outcome"]
    old = maker.experiment(setup)
    replay(old, journal.entries())
    assert maker.outcome(old) == outcome
    with pytest.raises(ReplayDiverged):
        replay(maker.experiment(setup, version=version + 1), journal.entries())
    journal.close()


def test_it_is_worth_keeping(journal: Journal) -> None:
    """It has nearly everything that can happen."""
    events, commands = Counter[str](), Counter[str]()
    for entry in journal.entries():
        events[type(entry.event).__name__] += 1
        commands.update(type(command).__name__ for command in entry.commands)
    journal.close()
    assert set(events) >= {
        *("ExperimentStarted", "TrialUp", "Reported", "CheckpointSaved", "TrialExited"),
        *("DevicesReleased", "DeviceQuarantined", "DeviceReadmitted", "TimerFired", "UserAsked"),
        "DaemonResumed",
    }
    assert set(commands) >= {
        *("Launch", "Yield", "Save", "Kill", "ConfirmRelease", "SetTimer", "KeepBest", "Finish")
    }
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


def test_a_released_journal_is_not_written_over(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make_golden_journal.py"])
    assert maker.main() == 1
    assert "never changed" in capsys.readouterr().err

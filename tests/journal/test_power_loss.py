"""The power fails at any moment: it starts in every state that may leave, and nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import pytest

from gpusched.errors import DamagedState
from gpusched.executors.best import keep_best
from gpusched.folder.files import private_folder, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal
from gpusched.journal.rows import Entry
from gpusched.worker.checkpoint import CheckpointStore
from tests.journal_samples import META, sample
from tests.powerloss import JournalStates, Recorder

TIMES = int(os.environ.get("GPUSCHED_TORTURE", "1"))
TRIAL = 7


# ---------------------------------------------------------------- the journal


def _record_journal(path: Path, seed: int) -> tuple[JournalStates, list[Entry]]:
    """Commits of one to nine events, most of them synced, with the log moved into the database now and then."""
    rng = random.Random(seed)
    journal = Journal.create(path, META)
    journal.log_pages = rng.choice([4, 10, 1000])
    states, entries = JournalStates(path), []
    events = iter(sample(120))
    for _ in range(30):
        known = len(entries)
        for event, commands in itertools.islice(events, rng.randint(1, 9)):
            journal.append(event, commands)
            entries.append(Entry(len(entries) + 1, event, commands))
        if len(entries) > known:
            states.commit(journal, len(entries), is_synced=rng.random() < 0.6)
    journal.close()
    return states, entries


def _check_journal(path: Path, acknowledged: int, entries: list[Entry]) -> None:
    journal = Journal.open(path)
    try:
        found = list(journal.entries())
        assert journal.meta == META
    finally:
        journal.close()
    assert len(found) >= acknowledged, "acknowledged events are lost"
    assert found == entries[: len(found)]


def journal_states(folder: Path, count: int, seed: int) -> None:
    path = folder / "lost" / "journal.db"
    path.parent.mkdir()
    for number in range(count):
        if number % 1000 == 0:
            recorded = folder / f"{number}.db"
            states, entries = _record_journal(recorded, seed + number)
        rng = random.Random(f"{seed} {number}")
        acknowledged = states.state(rng, path)
        try:
            _check_journal(path, acknowledged, entries)
        except BaseException as error:
            error.add_note(f"journal state {number} of seed {seed}")
            raise


def test_the_journal_after_a_power_loss(folder: Path) -> None:
    journal_states(folder, 200, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(6))
def test_the_journal_after_ten_thousand_power_losses(folder: Path, seed: int) -> None:
    journal_states(folder, 10_000 * TIMES, seed)


# ---------------------------------------------------------------- checkpoints and best/


def _state_of(step: int) -> bytes:
    return random.Random(step).randbytes(700 + 97 * step)


def _record_trial(root: Path, seed: int) -> Recorder:
    """A trial that saves, goes back, saves the same step again, and becomes the best."""
    rng = random.Random(seed)
    paths = ExperimentPaths(root)
    private_folder(paths.trials)
    recorder = Recorder(root)
    with recorder.recording():
        trial = paths.trial(TRIAL)
        private_folder(trial.logs(1))
        write_durably(trial.hparams, b'{"trial": 7}')
        store = CheckpointStore(trial.checkpoints, keep=rng.choice([1, 2]))
        steps = [1, 2, 3, 5, rng.choice([5, 6]), 8]
        for step in steps:
            source = memoryview(_state_of(step))
            store.write(step, {"state.pt": source, "rank-0.pt": memoryview(b"rng")}, {"x": step})
            recorder.acknowledge(("checkpoint", step))
            if rng.random() < 0.7:
                assert keep_best(paths, TRIAL, step, metric="a", value=step / 10, atoms=1)
                recorder.acknowledge(("best", step))
    return recorder


def _check_trial(
    root: Path, facts: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    paths, known = ExperimentPaths(root), dict(facts)
    found = CheckpointStore(paths.trial(TRIAL).checkpoints).newest()
    wanted = known.get("checkpoint", 0)
    assert (found.step if found is not None else 0) >= wanted, f"checkpoint {wanted} is lost"
    if found is not None:
        assert (found.folder / "state.pt").read_bytes() == _state_of(found.step)
        assert (found.folder / "rank-0.pt").read_bytes() == b"rng"
    if "best" in known:
        metric = json.loads((paths.best / "metric.json").read_bytes())
        assert metric["step"] >= known["best"]
        assert metric["value"] == metric["step"] / 10
        state = (paths.best / "checkpoint" / "state.pt").read_bytes()
        assert state == _state_of(metric["step"])
    capsys.readouterr()


def trial_states(folder: Path, count: int, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(count):
        if number % 500 == 0:
            recorded = folder / f"recorded-{number}"
            recorder = _record_trial(recorded, seed + number)
            assert len(recorder.log) > 60, "the recording is not one"
        rng = random.Random(f"{seed} {number}")
        facts = recorder.state(rng, folder / "lost")
        try:
            _check_trial(folder / "lost", facts, capsys)
        except DamagedState:
            raise AssertionError(f"state {number} of seed {seed} is refused") from None
        except BaseException as error:
            error.add_note(f"trial state {number} of seed {seed}")
            raise


def test_a_trial_after_a_power_loss(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial_states(folder, 200, 1, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_a_trial_after_ten_thousand_power_losses(
    folder: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trial_states(folder, 10_000 * TIMES, seed, capsys)

"""One bit changes on the disk, or a file is torn: found and named, or harmless; nothing is ever silently wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.core.commands import KeepBest
from gpusched.daemon import best_model as result
from gpusched.errors import DamagedState
from gpusched.executors.best import keep_best
from gpusched.folder.files import private_folder
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import ReportLog, reports_after
from gpusched.journal.log import Journal
from gpusched.journal.rows import Entry
from gpusched.protocol import Report
from gpusched.worker import checkpoint
from gpusched.worker.checkpoint import CheckpointStore
from tests.journal_samples import META, read, sample, write
from tests.torture.bed import times

EVENTS = 60
CLOSED = "closed.db"
"""A journal that was closed in good order; ``journal.db`` is as kill -9 leaves it, with all of it in the log."""


def _contents(step: int) -> bytes:
    return random.Random(step).randbytes(400)


@pytest.fixture(autouse=True)
def time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of this moment are not hashed again."""
    monkeypatch.setattr(checkpoint, "FRESH_S", -1.0)


def make(root: Path) -> ExperimentPaths:
    """A search's folder with a trial that has saved twice, reported, and is the best; and its journals."""
    paths = ExperimentPaths(root)
    trial = paths.trial(3)
    private_folder(trial.root)
    store = CheckpointStore(trial.checkpoints)
    for step in (1, 2):
        store.write(step, {"state.pt": memoryview(_contents(step))}, {"iteration": step})
    trial.hparams.write_text('{"trial": 3, "seed": 5, "hparams": {"lr": 0.25, "act": "relu"}}')
    assert keep_best(paths, KeepBest(3, 2, 0.875, 2), "accuracy")
    log = ReportLog(trial.reports, 1)
    for step in range(1, 30):
        log.append(Report(0, 0, step, 0.5, {"accuracy": step / 64, "loss": 1 / step}))
    write(root / CLOSED, EVENTS)
    (live := root.with_name("live")).mkdir()
    journal = Journal.create(live / paths.journal.name, META)
    for event, commands in sample(EVENTS):
        journal.append(event, commands)
    journal.commit()
    shutil.copytree(live, root, dirs_exist_ok=True)
    journal.close()
    return paths


# ---------------------------------------------------------------- what may become of each file


def _named(root: Path, error: DamagedState) -> str:
    assert str(root) in str(error), "the message does not say where"
    return "found"


def _checkpoint(root: Path) -> str:
    found = CheckpointStore(ExperimentPaths(root).trial(3).checkpoints).newest()
    if found is None:
        return "found"
    assert (found.folder / "state.pt").read_bytes() == _contents(found.step), "silently different"
    assert found.facts["iteration"] == found.step, "silently different"
    return "same" if found.step == 2 else "found"


def _reports(root: Path) -> str:
    lines = reports_after(ExperimentPaths(root).trial(3).reports, 0)
    for line in lines:
        assert line.step == line.seq, "silently different"
        assert line.metrics == {"accuracy": line.step / 64, "loss": 1 / line.step}, "different"
        assert line.step_time_s == 0.5, "silently different"
    return "found" if set(range(1, 30)) - {line.seq for line in lines} else "same"


def _best(root: Path) -> str:
    try:
        found = result.describe(ExperimentPaths(root))
    except DamagedState as error:
        return _named(root, error)
    assert (found.trial, found.step, found.value, found.atoms) == (3, 2, 0.875, 2)
    assert (found.metric, found.hparams) == ("accuracy", {"lr": 0.25, "act": "relu"})
    return "same"


def _journal(path: Path) -> str:
    expected = [Entry(seq, *one) for seq, one in enumerate(sample(EVENTS), 1)]
    try:
        journal = Journal.open(path)
    except DamagedState as error:
        return _named(path, error)
    try:
        found, meta = list(journal.entries()), journal.meta
    except DamagedState as error:
        return _named(path, error)
    finally:
        journal.close()
    assert found == expected, "silently different"
    assert meta == META, "silently different meta"
    return "same"


def _live(root: Path) -> str:
    return _journal(root / "journal.db")


def _closed(root: Path) -> str:
    return _journal(root / CLOSED)


#: What reading makes of a changed file, in how many bits it is tried, and the least share that is found.
VICTIMS: dict[str, tuple[Callable[[Path], str], int, float]] = {
    "trials/0003/checkpoints/step-00000002/state.pt": (_checkpoint, 40, 0.9),
    "trials/0003/checkpoints/step-00000002/manifest.json": (_checkpoint, 40, 0.9),
    "trials/0003/reports.jsonl": (_reports, 40, 0.9),
    "best/metric.json": (_best, 40, 0.9),
    "best/hparams.json": (_best, 40, 0.9),
    CLOSED: (_closed, 400, 0.25),
    "journal.db-wal": (_live, 300, 0.33),
    "journal.db-shm": (_live, 60, 0.0),
    "journal.db-mark": (_live, 60, 0.0),
}


def copies(root: Path) -> Iterator[Path]:
    """Fresh copies of the folder, one at a time."""
    original = make(root / "original").root
    while True:
        shutil.rmtree(root / "copy", ignore_errors=True)
        yield shutil.copytree(original, root / "copy", symlinks=True)


def flip(root: Path, victim: str, count: int, seed: int) -> dict[str, int]:
    check, outcomes, rng = VICTIMS[victim][0], {"same": 0, "found": 0}, random.Random(seed)
    for number, copy in zip(range(count), copies(root), strict=False):
        file = copy / victim
        before, data = file.stat(), bytearray(file.read_bytes())
        place, bit = rng.randrange(len(data)), rng.randrange(8)
        data[place] ^= 1 << bit
        file.write_bytes(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # rot leaves no trace
        try:
            outcomes[check(copy)] += 1
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {place} of {victim}, number {number} of seed {seed}")
            raise
    return outcomes


@pytest.mark.parametrize("victim", VICTIMS)
def test_flipped_bits_are_found_or_harmless(
    victim: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, count, share = VICTIMS[victim]
    outcomes = flip(folder, victim, count, seed=1)
    assert outcomes["found"] >= share * count, outcomes
    assert ("damaged" in capsys.readouterr().err) == ("checkpoints" in victim), "it is named"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", VICTIMS)
def test_thousands_of_flipped_bits(
    victim: str, seed: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = flip(folder, victim, times(400), seed)
    capsys.readouterr()
    print(f"seed {seed}: {json.dumps(outcomes)}")


@pytest.mark.parametrize(("victim", "every"), [(CLOSED, 509), ("journal.db-wal", 1021)])
def test_a_torn_journal_is_found(victim: str, every: int, folder: Path) -> None:
    fresh = copies(folder)
    size = (next(fresh) / victim).stat().st_size
    for length, copy in zip([*range(0, size, every), size - 1], fresh, strict=False):
        os.truncate(copy / victim, length)
        assert VICTIMS[victim][0](copy) == "found", length


def test_a_lost_log_is_found(folder: Path) -> None:
    copy = next(copies(folder))
    (copy / "journal.db-wal").unlink()
    assert _live(copy) == "found"


@pytest.mark.parametrize("leftover", ["journal.db-shm", "journal.db-mark"])
def test_what_is_lost_beside_it_is_made_again(folder: Path, leftover: str) -> None:
    copy = next(copies(folder))
    (copy / leftover).unlink()
    assert len(read(copy / "journal.db")) == EVENTS


def test_the_checksums_name_is_no_other_keys_by_one_bit(folder: Path) -> None:
    """Seeds 2 and 3 of the long form found it: ``c`` became ``s``, which is the time of a step."""
    path = make(folder / "x").trial(3).reports
    line = path.read_bytes().splitlines()[0]
    place = line.index(b'"crc"') + 1
    for where in range(place, place + 3):
        for bit in range(8):
            changed = bytearray(line)
            changed[where] ^= 1 << bit
            path.write_bytes(bytes(changed) + b"\n")
            for found in reports_after(path, 0):
                assert (found.seq, found.step, found.step_time_s) == (1, 1, 0.5)

"""One bit changes on the disk: it is found and named, or harmless; nothing is ever silently wrong.

The journal has its own in ``journal/test_damage.py``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusched.daemon import best_model as result
from gpusched.daemon.storage import checksums, require_unchanged
from gpusched.errors import DamagedState
from gpusched.executors.best import keep_best
from gpusched.folder.files import private_folder
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import ReportLog, reports_after
from gpusched.protocol import Report
from gpusched.worker import checkpoint
from gpusched.worker.checkpoint import CheckpointStore

TIMES = int(os.environ.get("GPUSCHED_TORTURE", "1"))
Outcome = str
Check = Callable[[ExperimentPaths], Outcome]


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Time has passed since the checkpoints were written: they are hashed again."""
    monkeypatch.setattr(checkpoint, "FRESH_S", -1.0)
    return folder


def _contents(step: int) -> bytes:
    return random.Random(step).randbytes(400)


def make(root: Path) -> ExperimentPaths:
    """An experiment's folder with a trial that has saved twice, reported, and is the best."""
    paths = ExperimentPaths(root)
    trial = paths.trial(3)
    private_folder(trial.root)
    store = CheckpointStore(trial.checkpoints)
    for step in (1, 2):
        store.write(step, {"state.pt": memoryview(_contents(step))}, {"iteration": step})
    trial.hparams.write_text('{"trial": 3, "seed": 5, "hparams": {"lr": 0.25, "act": "relu"}}')
    assert keep_best(paths, 3, 2, metric="accuracy", value=0.875, atoms=2)
    log = ReportLog(trial.reports, 1)
    for step in range(1, 30):
        log.append(Report(0, 0, step, 0.5, {"accuracy": step / 64, "loss": 1 / step}))
    paths.resolved.write_text('{"seed": 5, "deadline": 600}')
    paths.began.write_text('{"wall_s": 1700000000.5, "boottime_s": 4.5, "boot_id": "a-b"}')
    paths.worker.write_text('{"metric": "accuracy", "seed": 2}')
    return paths


def _checkpoint(paths: ExperimentPaths) -> Outcome:
    found = CheckpointStore(paths.trial(3).checkpoints).newest()
    if found is None:
        return "found"
    assert (found.folder / "state.pt").read_bytes() == _contents(found.step), "silently different"
    assert found.facts["iteration"] == found.step, "silently different"
    return "same" if found.step == 2 else "found"


def _reports(paths: ExperimentPaths) -> Outcome:
    lines = reports_after(paths.trial(3).reports, 0)
    for line in lines:
        assert line.step == line.seq, "silently different"
        assert line.metrics == {"accuracy": line.step / 64, "loss": 1 / line.step}, "different"
        assert line.step_time_s == 0.5, "silently different"
    missing = set(range(1, 30)) - {line.seq for line in lines}
    return "found" if missing else "same"


def _named(paths: ExperimentPaths, error: DamagedState) -> Outcome:
    assert str(paths.root) in str(error), "the message does not say where"
    return "found"


def _best(paths: ExperimentPaths) -> Outcome:
    try:
        found = result.describe(paths)
    except DamagedState as error:
        return _named(paths, error)
    assert (found.trial, found.step, found.value, found.atoms) == (3, 2, 0.875, 2)
    assert (found.metric, found.hparams) == ("accuracy", {"lr": 0.25, "act": "relu"})
    return "same"


def _beginning(paths: ExperimentPaths, known: dict[str, int]) -> Outcome:
    try:
        require_unchanged(paths, {"checksums": known})
    except DamagedState as error:
        return _named(paths, error)
    return "same"


def flip(root: Path, count: int, seed: int) -> dict[str, dict[str, int]]:
    original = make(root / "original")
    known = checksums(original)
    checks: dict[str, Check] = {
        "trials/0003/checkpoints/step-00000002/state.pt": _checkpoint,
        "trials/0003/checkpoints/step-00000002/manifest.json": _checkpoint,
        "trials/0003/reports.jsonl": _reports,
        "best/metric.json": _best,
        "best/hparams.json": _best,
        "resolved.json": lambda paths: _beginning(paths, known),
        "began.json": lambda paths: _beginning(paths, known),
    }
    outcomes = {name: {"same": 0, "found": 0} for name in checks}
    rng = random.Random(seed)
    for number in range(count):
        name = rng.choice(list(checks))
        copy = root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original.root, copy, symlinks=True)
        file = copy / name
        before, data = file.stat(), bytearray(file.read_bytes())
        place, bit = rng.randrange(len(data)), rng.randrange(8)
        data[place] ^= 1 << bit
        file.write_bytes(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # rot leaves no trace
        try:
            outcomes[name][checks[name](ExperimentPaths(copy))] += 1
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {place} of {name}, number {number} of seed {seed}")
            raise
    return outcomes


def test_flipped_bits_are_found_or_harmless(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = flip(folder, 300, seed=1)
    for name, found in outcomes.items():
        assert found["found"] > 0.9 * sum(found.values()), (name, found)
    assert "damaged" in capsys.readouterr().err, "it is named"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_flipped_bits(
    folder: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = flip(folder, 2500 * TIMES, seed)
    capsys.readouterr()
    print(f"seed {seed}: {json.dumps(outcomes)}")


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


def test_flips_leave_the_reports_number_alone(folder: Path) -> None:
    """A new incarnation never takes a number that the daemon knows, whatever became of the file."""
    path = make(folder / "x").trial(3).reports
    path.write_bytes(path.read_bytes()[:-60] + b"\x07" * 60)
    log = ReportLog(path, 2, known_seq=29)
    log.append(Report(0, 0, 30))
    assert log.last_seq == 30

"""``scripts/gpu_check.py``: what it says without a GPU, how it reads a journal, and (slow) its rehearsal on a CPU."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpusched.core.events import Reported
from gpusched.journal.rows import event_body
from gpusched.protocol import Report

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RECIPES = SCRIPTS.parent / "recipes"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("gpu_parts.searches")


def check(*words: str, timeout_s: float = 60.0) -> tuple[int, list[dict[str, Any]]]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPTS / "gpu_check.py"), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment
    )
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_gpu_it_says_so() -> None:
    code, (line,) = check()
    assert code == 0
    assert line["gpus"] == []
    assert "no GPU" in line["message"]


def journal(path: Path, *rows: tuple[float, str, dict[str, Any]]) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE events (seq, at, kind, body)")
    told = [(n, at, kind, json.dumps(body)) for n, (at, kind, body) in enumerate(rows)]
    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", told)
    connection.commit()
    connection.close()
    return path


def report(at: float, trial: int, incarnation: int) -> tuple[float, str, dict[str, Any]]:
    made = Report(incarnation=incarnation, seq=1, step=1, step_time_s=0.5, metrics={})
    event = Reported(at=at, trial=trial, report=made, metric=None)
    return at, "Reported", json.loads(event_body(event))


def test_only_switches_to_a_restored_trial_count(searches: ModuleType, tmp_path: Path) -> None:
    path = journal(
        tmp_path / "journal.db",
        report(1.0, 0, 1),
        report(2.0, 0, 1),
        (2.2, "TrialExited", {}),
        (2.3, "DevicesReleased", {}),
        report(4.0, 1, 1),  # begins: nothing is restored
        (4.25, "TrialExited", {}),
        (4.5, "DevicesReleased", {}),
        report(6.0, 0, 2),
        report(7.0, 0, 2),
        (7.1, "TrialExited", {}),
        (7.1, "DevicesReleased", {}),
        report(9.0, 0, 3),  # the same again is no turn of another
    )
    assert searches.switches(path) == {
        "save_and_leave_s": [0.25],
        "release_s": [0.25],
        "start_and_restore_s": [1.0],
        "whole_s": [1.5],
    }


def test_a_part_that_measured_nothing_has_failed_and_says_why(
    searches: ModuleType, tmp_path: Path
) -> None:
    """A search without a turn read as one that had been measured: ``n: 0``, exit code 0."""
    rows = (report(1.0, 0, 1), (2.2, "TrialExited", {}), report(61.0, 1, 1))
    with pytest.raises(searches.Failed, match="was restored in 61 s, and 1 launches ended"):
        searches.switches(journal(tmp_path / "journal.db", *rows))
    code, lines = check("--cpu", "--only", "endings", "--seconds", "0")
    assert code == 1
    assert lines[1]["error"] == "nothing was measured: the parts before took all of --seconds"


@pytest.mark.slow
def test_the_made_images_are_what_the_recipe_reads(searches: ModuleType, tmp_path: Path) -> None:
    searches.make_images(tmp_path, 20)
    code = (
        "import sys; from pathlib import Path; import cifar10;"
        "p, l = cifar10.read_images(Path(sys.argv[1]) / 'cifar-10-batches-py', cifar10.TRAINING);"
        "print(tuple(p.shape), sorted(set(l.tolist())))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parent), str(RECIPES)])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == f"(100, 3, 32, 32) {list(range(10))}", done.stderr


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_rehearsal() -> None:
    """Every part but the image search, with real processes on a CPU slot."""
    parts = ("starts", "groups", "resize", "turns", "endings", "search")
    code, lines = check("--cpu", "--rounds", "1", "--only", *parts, timeout_s=400)
    assert code == 0, lines
    several = {"starts": 2, "endings": 4}
    wanted = [part for part in parts for _ in range(several.get(part, 1))]
    assert [line["part"] for line in lines] == ["machine", *wanted, "end"]
    endings = {line["how"]: line for line in lines if line["part"] == "endings"}
    assert {how: line["outcomes"] for how, line in endings.items()} == {
        "yield": ["yielded"],
        "term": ["killed"],
        "kill": ["failed"],
        "hang": ["killed"],
    }
    assert endings["hang"]["processes_gone_s"]["min"] >= 0.5, "it was given its grace"
    (turns,) = [line for line in lines if line["part"] == "turns"]
    assert turns["whole_s"]["n"] >= 1
    (search,) = [line for line in lines if line["part"] == "search"]
    assert search["ran_when_killed"] == search["went_on"] == 1
    assert search["reports_lost"] == 0

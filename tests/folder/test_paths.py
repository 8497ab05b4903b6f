"""The experiment's folder: where everything is, who may read it, and files that are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpusched.folder import paths
from gpusched.folder.files import private_folder, write_aside, write_durably
from gpusched.folder.paths import ExperimentPaths, TrialPaths


def test_what_the_contract_names_is_where_it_says() -> None:
    """docs/contracts.md and design section 8."""
    of = ExperimentPaths(Path("/runs/digits-1"))
    found = (of.resolved, of.worker, of.journal, of.lock, of.socket, of.log, of.best, of.report)
    assert [str(path.relative_to(of.root)) for path in found] == [
        *("resolved.json", "worker.json", "journal.db", "lock", "daemon.sock", "daemon.log"),
        *("best", "report.html"),
    ]
    trial = of.trial(7)
    assert trial == TrialPaths(Path("/runs/digits-1/trials/0007"))
    assert {
        trial.hparams,
        trial.reports,
        trial.checkpoint(12),
        trial.log(3, 0, "err"),
        trial.last_word(3),
        trial.exit(3),
        trial.error_file(3, 1),
    } == {
        trial.root / name
        for name in (
            *("hparams.json", "reports.jsonl", "checkpoints/step-00000012", "logs/3/rank-0.err"),
            *("logs/3/last-word.json", "logs/3/exit.json", "logs/3/error-1.json"),
        )
    }


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for folder in (made, made.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(made) == made, "again is as good"


def test_a_durable_file_is_replaced_whole_and_is_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "final.json"
    write_durably(path, b"one")
    write_durably(path, b"two" * 100_000)
    assert path.read_bytes() == b"two" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_two_machines_with_one_pid_write_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine finds the file that it has written to rename."""
    monkeypatch.setattr(paths.os, "getpid", lambda: 7)
    path = tmp_path / "hparams.json"
    ours, theirs = write_aside(path, b"ours"), write_aside(path, b"theirs")
    assert ours.replace(path).read_bytes() == b"ours"
    assert theirs.replace(path).read_bytes() == b"theirs"


def test_what_is_an_experiment(tmp_path: Path) -> None:
    of = ExperimentPaths(tmp_path)
    assert (of.is_experiment, of.resolved_time) == (False, 0.0)
    of.journal.touch()
    of.resolved.touch()
    assert of.is_experiment
    assert of.resolved_time > 0

"""The experiment's folder: who may read it, and files that are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpusched.folder import paths
from gpusched.folder.files import private_folder, write_aside, write_durably


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

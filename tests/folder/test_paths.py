"""The experiment's folder: who may read it, and files that are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpusched.folder.files import private_folder, write_durably


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

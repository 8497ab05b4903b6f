"""The experiment's folder: who may read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpusched.folder.files import private_folder


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for folder in (made, made.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(made) == made, "again is as good"

"""The word about a library that every launch imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from gpusched.worker import imports
sys.path.insert(0, sys.argv[1])
imports.note_present()
import heavy.part
print(imports.advice(sys.argv[2]))
"""


@pytest.mark.parametrize(("modules", "is_told"), [(200, True), (20, False)])
def test_a_library_that_is_imported_at_each_launch_is_named(
    modules: int, is_told: bool, tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "heavy"
    package.mkdir(parents=True)
    for number in range(modules):
        (package / f"m{number}.py").write_text("")
    lines = "".join(f"import heavy.m{number}\n" for number in range(modules))
    (package / "__init__.py").write_text(lines)
    (package / "part.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import os\nfrom heavy.part import *\nimport torch\n")
    words = [sys.executable, "-c", PROGRAM, str(package.parent), str(script)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert ("`preload: [heavy.part]`" in told) is is_told
    assert told.startswith("every launch imports heavy.part anew (202 modules)") is is_told


def test_a_process_that_no_server_forked_is_told_nothing(tmp_path: Path) -> None:
    words = "from gpusched.worker import imports; print(imports.advice('train.py'))"
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert told.stdout == "None\n"

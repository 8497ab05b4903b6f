"""What continuous integration makes of tests that fail: the steps are real, on a small project of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).parents[1] / ".ci" / "again.py"
SOUND = "def test_sound(): pass\n"
ONCE = """
from pathlib import Path
def test_unsteady():
    tried = Path("tried").exists()
    Path("tried").touch()
    assert tried
"""
BROKEN = "def test_broken(): assert 0\n"
MANY = (
    "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_many(n, tmp_path): assert 0\n"
)
CUT_SHORT = "import os\ndef test_crash(): os._exit(3)\n"
UNREADABLE = "import nothing_of_that_name\n"


@pytest.mark.parametrize(
    ("tests", "passes", "again"),
    [
        (SOUND + ONCE, True, "test_unsteady"),
        (SOUND + ONCE + BROKEN, False, "test_broken"),
        (SOUND + MANY, False, None),
        (SOUND + CUT_SHORT, False, None),
        (SOUND + UNREADABLE, False, None),
    ],
    ids=["unsteady", "broken beside unsteady", "many", "cut short", "unreadable"],
)
def test_few_failed_tests_run_once_more_alone(
    tmp_path: Path, tests: str, passes: bool, again: str | None
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(tests)
    first = _python(tmp_path, "-m", "pytest", "-q")
    assert first.returncode
    (tmp_path / "log").write_text(first.stdout)
    second = _python(tmp_path, str(AGAIN), "log", "unsteady.txt")
    assert (second.returncode == 0) is passes, second.stdout
    assert (again is not None) == ("Once more, alone" in second.stdout)
    assert again is None or again in second.stdout
    assert (tmp_path / "unsteady.txt").exists() is passes
    assert not passes or (tmp_path / "unsteady.txt").read_text() == "test_it.py::test_unsteady\n"


def _python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=folder, text=True, capture_output=True)

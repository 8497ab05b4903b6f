"""Completion in a shell: commands, searches, trials, keys, as argcomplete asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.sim.setup import Setup
from scripts.kept import simulate_into

pytest.importorskip("argcomplete")
pytestmark = pytest.mark.integrations


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    simulate_into(runs, Setup(deadline_s=8, atoms=4, policy="asha", seed=3))
    return runs


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gpusched sta", {"status"}),
        ("gpusched status", {"status"}),
        ("gpusched explain --dir RUNS ", {"0", "2"}),
        ("gpusched status --dir RUNS ", {"NAME"}),
        ("gpusched run --set max_t", {"max_trials="}),
        ("gpusched try --dir RUNS ", {"b1="}),
    ],
)
def test_a_shell_is_told_what_may_follow(
    line: str, found: set[str], runs: Path, tmp_path: Path
) -> None:
    (folder,) = runs.iterdir()
    line, answer = line.replace("RUNS", str(runs)), tmp_path / "answer"
    environ = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    environ |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run(
        [sys.executable, "-m", "gpusched"], env={**os.environ, **environ}, check=True, timeout=60
    )
    told = {word.strip() for word in answer.read_text().splitlines()}
    assert found <= {word.replace(folder.name, "NAME") for word in told}

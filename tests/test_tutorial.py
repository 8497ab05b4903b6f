"""The tutorial's files, run as its reader runs them: alone, checked, searched, loaded.

``make test-wheel`` runs these with an interpreter that has the wheel installed, and nothing of this folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = dict(
    re.findall(
        r'```\w+ title="([^"]+)"[^\n]*\n(.*?)```', (ROOT / "docs" / "index.md").read_text(), re.S
    )
)


INSTALLED = os.environ.get("GPUSCHED_INSTALLED", "")


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": "" if INSTALLED else str(ROOT)}
    environment.pop("GPUSCHED_RUNS", None)
    done = subprocess.run(
        [INSTALLED or sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("spirals")
    for name, body in FILES.items():
        made.joinpath(name).write_text(body)
    return made


def test_the_script_runs_alone_as_before(folder: Path) -> None:
    said = run(folder, "train.py", "--lr", "0.1", "--max-steps", "2")
    assert "step 2" in said


def test_the_highlighted_lines_are_the_ones_that_name_the_trial() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    marked = [int(n) for n in re.findall(r'hl_lines="([\d ]+)"', text)[0].split()]
    lines = FILES["train.py"].splitlines()
    naming = [
        n for n, line in enumerate(lines, 1) if re.search(r"\bgpusched\b|\btrial\.(?!device)", line)
    ]
    assert marked == naming


def test_the_search_finds_a_model_that_can_be_loaded(folder: Path) -> None:
    assert "spirals.yaml is good" in run(folder, "-m", "gpusched", "validate", "spirals.yaml")
    small = ["--devices", "cpu:2", "--set", "max_trials=3", "--set", "policy.R=4"]
    run(folder, "-m", "gpusched", "run", "spirals.yaml", *small, "--json")
    best = json.loads(run(folder, "-m", "gpusched", "best", "--json"))
    assert best["value"] > 0.45
    assert "'4.bias': (2,)" in run(folder, "use.py")

"""``scripts/figures.py`` from runs to points, on the cheapest grids."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.rig import run_python

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "figures.py"


def figures(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python(SCRIPT, *words)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    done = figures("hypersched-8", "hermes-5", "--quick", "--jobs", "1", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "figure 8: resizing / no resizing" in done.stdout
    return folder


def points(folder: Path, name: str) -> list[dict[str, object]]:
    found = json.loads((folder / f"{name}.json").read_text())
    assert found["figure"] == name
    return list(found["points"])


def test_resizing_helps_where_training_scales(drawn: Path) -> None:
    score = {(p["scaling"], p["label"]): p["score"] for p in points(drawn, "hypersched-8")}
    assert len(score) == 6
    assert float(str(score["linear", "resizing"])) > float(str(score["linear", "no resizing"]))
    assert score["none", "resizing"] == score["none", "no resizing"]


def test_hermes_is_compared_with_fifo_round_robin_and_slaq(drawn: Path) -> None:
    relative = {(p["jobs"], p["policy"]): p["relative"] for p in points(drawn, "hermes-5")}
    assert {name for _, name in relative} == {
        "fifo",
        "round_robin",
        "slaq",
        "hermes",
        "hermes_fixed",
    }
    assert relative["bin 1", "fifo"] == 1.0
    assert float(str(relative["bin 1", "hermes"])) < float(str(relative["bin 1", "round_robin"]))

"""``scripts/gpu_check.py``: what it says without a GPU, and (slow) its rehearsal on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rig import run_python

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ENDINGS = {"yield": ["yielded"], "term": ["killed"], "kill": ["lost"], "hang": ["killed"]}


def check(*words: str) -> tuple[int, list[dict[str, Any]]]:
    done = run_python(SCRIPTS / "gpu_check.py", *words, CUDA_VISIBLE_DEVICES="")
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_gpu_it_says_so() -> None:
    code, (line,) = check()
    assert code == 0
    assert line["gpus"] == []
    assert "no GPU" in line["message"]


def test_a_part_that_measured_nothing_has_failed_and_says_why() -> None:
    code, lines = check("--cpu", "--only", "endings", "--seconds", "0")
    assert code == 1
    assert lines[1]["error"] == "nothing was measured: the parts before took all of --seconds"


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_rehearsal() -> None:
    """Every part that needs no driver, with real processes on a CPU slot."""
    parts = ("starts", "groups", "resize", "endings", "search")
    code, lines = check("--cpu", "--rounds", "1", "--only", *parts)
    assert code == 0, lines
    several = {"starts": 2, "endings": 4}
    wanted = [part for part in parts for _ in range(several.get(part, 1))]
    assert [line["part"] for line in lines] == ["machine", *wanted, "end"]
    endings = {line["how"]: line for line in lines if line["part"] == "endings"}
    assert {how: line["outcomes"] for how, line in endings.items()} == ENDINGS
    assert endings["hang"]["processes_gone_s"]["min"] >= 0.5, "it was given its grace"
    (search,) = [line for line in lines if line["part"] == "search"]
    assert search["ran_when_killed"] == search["went_on"] == 1
    assert search["reports_lost"] == 0

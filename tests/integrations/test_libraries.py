"""Scripts with Lightning, transformers and Accelerate, searched for real: paused, resumed, taken 1 -> 2 -> 1 ranks.

Each is compared with the same script that is left alone on one rank. ``make test-integrations`` installs the libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_rehearse import RUNNER
from tests.conftest import with_libraries
from tests.rig import run_python

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")

pytestmark = with_libraries("lightning", "transformers", "accelerate")
Row = dict[str, Any]


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "recipes")])
    variables = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    return run_python("-m", "gpusched", *words, folder=folder, **variables)


def search(
    folder: Path, script: str, library: str, alone: bool, **space: object
) -> list[list[Row]]:
    """Run ``script`` as a trial that is moved, and perhaps as one left alone: what their ranks wrote down, in order."""
    recipe = {
        "script": str(SCRIPTS / script),
        "metric": "val_loss" if script != "hf.py" else "eval_loss",
        "mode": "min",
        "deadline": "1h",
        "devices": "cpu:2",
        "policy": {"name": f"{SCRIPTS / 'policies.py'}:Seesaw", "R": 40},
        "space": {**space, "place": {"choice": ["moved", "alone"][: 1 + alone]}},
        "sampler": "grid",
        "preload": ["vision_ops", library],
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    done = run(folder, ["run", "recipe.yaml", "--dir", "runs", "--json"])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = []
    for trial, expected in (("0000", [2, 1]), ("0001", []))[: 1 + alone]:
        (written,) = (folder / "runs").glob(f"*/trials/{trial}/files/steps.jsonl")
        rows: list[Row] = [json.loads(line) for line in written.read_text().splitlines()]
        sizes = [row["ranks"] for row in rows if row["rank"] == 0]
        changes = [b for a, b in pairwise(sizes) if a != b]
        assert changes == expected, "the trial was not resized as planned"
        found.append(rows)
    return found


def by_step(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["global_step"]].append(row)
    return found


def assert_each_sample_once(rows: list[Row]) -> None:
    """No epoch is trained twice or in part, whatever happened in it."""
    seen: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        seen[row["epoch"]] += row["samples"]
    assert sorted(seen) == list(range(40))
    assert {tuple(sorted(samples)) for samples in seen.values()} == {tuple(sorted(seen[0]))}


def assert_same_course(steady: list[Row], moved: list[Row]) -> None:
    """With a fixed global batch: the same steps, rates and (mean over ranks) losses as on one rank without a pause."""
    alone, together = by_step(steady), by_step(moved)
    assert alone.keys() == together.keys()
    for step, rows in together.items():
        (expected,) = alone[step]
        assert len(rows) == rows[0]["ranks"], f"step {step} was taken twice or by some ranks only"
        assert [row["lr"] for row in rows] == pytest.approx([expected["lr"]] * len(rows), rel=1e-9)
        mean = sum(row["loss"] for row in rows) / len(rows)
        assert mean == pytest.approx(expected["loss"], rel=1e-3, abs=1e-5)


def test_lightning_with_a_fixed_global_batch_trains_as_if_left_alone(tmp_path: Path) -> None:
    given = {"lr": 0.05, "batch": 16}
    moved, steady = search(tmp_path, "lit.py", "lightning", True, **given)
    assert_same_course(steady, moved)
    assert_each_sample_once(moved)


def test_transformers_trains_as_if_left_alone(tmp_path: Path) -> None:
    given = {"lr": 0.01, "batch": 16}
    moved, steady = search(tmp_path, "hf.py", "transformers", True, **given)
    assert_same_course(steady, moved)
    assert_each_sample_once(moved)


@pytest.mark.parametrize("files", [False, True], ids=["tracked", "in files of its own"])
def test_accelerate_counts_its_schedule_once(tmp_path: Path, files: bool) -> None:
    given = {"lr": 0.05, "batch": 16, "files": files}
    (rows,) = search(tmp_path, "accel.py", "accelerate", False, **given)
    assert_each_sample_once(rows)
    seen = 0
    for row in (row for row in rows if row["rank"] == 0):
        assert row["lr"] == pytest.approx(0.05 * (1 - 0.9 * seen / 640), abs=1e-9)
        seen += row["ranks"]
    assert seen == 640


MISTAKES = {
    "accelerate's steps counted for each rank of a fixed batch": (
        "accel.py",
        "batch_size=hp.batch",
        "batch_size=gpusched.init().local_batch(hp.batch)",
        "write Accelerator(step_scheduler_with_optimizer=False)",
    ),
    "lightning with a trainer of its own": (
        "lit.py",
        "search.trainer(  # <-\n    max_epochs=EPOCHS,\n    callbacks=[",
        "L.Trainer(max_epochs=EPOCHS, default_root_dir=trial.folder, callbacks=[search, ",
        "write search.trainer(...) in the place of Trainer(...)",
    ),
    "transformers without the checkpoint": (
        "hf.py",
        "resume_from_checkpoint=search.checkpoint",
        "",
        "write trainer.train(resume_from_checkpoint=search.checkpoint)",
    ),
    "transformers with options of its own": (
        "hf.py",
        "search.arguments(options)",
        "options",
        "search.arguments(TrainingArguments(...))",
    ),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the launch of each script with a mistake in it has said."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "play.py").write_text(RUNNER)
    for name, (script, right, wrong, _) in MISTAKES.items():
        text = (SCRIPTS / script).read_text()
        assert right in text
        (folder / f"{name}.py").write_text(text.replace(right, wrong))
    space = {"lr": 0.05, "batch": 16, "files": False}
    recipe = {
        "script": "play.py",
        "metric": "val_loss",
        "mode": "min",
        "deadline": "1h",
        "devices": "cpu:1",
        "policy": {"name": "asha", "R": 40},
        "space": {**space, "file": {"choice": [f"{name}.py" for name in MISTAKES]}},
        "sampler": "grid",
        "preload": ["vision_ops", "lightning", "transformers", "accelerate"],
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    words = ["validate", "recipe.yaml", "--rehearse", f"--configurations={len(MISTAKES)}", "--json"]
    done = run(folder, words)
    assert "rehearsals" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
    return {
        one["hparams"]["file"].removesuffix(".py"): one["findings"][0]["text"]
        for one in json.loads(done.stdout)["rehearsals"]
    }


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_would_train_wrongly_is_refused_with_the_line_to_change(
    mistake: str, refused: dict[str, str]
) -> None:
    assert refused[mistake].startswith("the script fails: ")
    assert MISTAKES[mistake][3] in refused[mistake]

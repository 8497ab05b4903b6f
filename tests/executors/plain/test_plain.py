"""A second live executor needs a folder of its own and nothing else: it passes the contract and runs a whole search."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.core.events import TrialExited, TrialUp
from gpusched.daemon import best_model, session
from gpusched.daemon.start import make_experiment
from gpusched.driver.assemble import Beginning
from gpusched.executors.base import LiveTrial
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting, make
from gpusched.folder.paths import ExperimentPaths
from gpusched.policies.rehearsal import WALK
from gpusched.recipe.load import load_recipe
from tests.executors.contract import ExecutorContract, Rig
from tests.journal_samples import read

HERE = "tests.executors.plain"
ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[1] / "scenarios.py"


def train(steps: int, **more: object) -> Mapping[str, object]:
    return {"scenario": "train", "steps": steps, **more}


def setting_in(folder: Path) -> Setting:
    (folder / "worker.json").write_text(json.dumps({"metric": "accuracy", "mode": "max"}))
    paths = ExperimentPaths(folder)
    recipe: Any = SimpleNamespace(script=SCRIPT, cwd=folder, metric="accuracy")
    began_s = time.monotonic()
    return Setting(
        paths=paths,
        recipe=recipe,
        hub=Hub(paths.socket),
        clock=lambda: time.monotonic() - began_s,
        say=print,
    )


@pytest.mark.slow  # every launch imports everything anew
class TestPlainExecutor(ExecutorContract):
    """Everything is in ``contract.py``."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        setting = setting_in(tmp_path)
        executor = make(HERE, setting)
        numbers = itertools.count()
        yield Rig(executor, lambda: next(numbers), train)
        executor.close()
        setting.hub.close()


@pytest.mark.slow
def test_a_whole_search_with_pauses_and_two_ranks(tmp_path: Path) -> None:
    """The daemon itself, told the executor's name: trials pause, grow, finish, and the best model is kept."""
    file = tmp_path / "recipe.yaml"
    recipe = {
        **{"script": str(SCRIPT), "metric": "accuracy", "deadline": "1h", "devices": "cpu:4"},
        "space": {"scenario": "carry", "steps": 6, "pause_s": {"choice": [0.01, 0.02, 0.03]}},
        **{"policy": {"name": WALK, "sizes": [1, 2], "steps": 3}, "max_trials": 1},
    }
    file.write_text(json.dumps(recipe))
    loaded = load_recipe(file)
    paths = make_experiment(tmp_path / "runs", loaded, Beginning.now(), file)
    daemon = [sys.executable, "-m", "gpusched.daemon.start", str(paths.root), "--executor", HERE]
    subprocess.run(daemon, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    events = [entry.event for entry in read(paths.journal)]
    assert [event.incarnation for event in events if isinstance(event, TrialUp)] == [1, 2]
    outcomes = [event.outcome for event in events if isinstance(event, TrialExited)]
    assert outcomes[0] == "yielded"
    best = best_model.load(paths.root)
    assert best.value == best.step == 6, "the state has seen every step, on one rank and on two"
    assert session.view(paths)["state"] == "finished"


def test_what_a_dead_daemon_left_is_ended_and_lost(tmp_path: Path) -> None:
    setting = setting_in(tmp_path)
    (lost,) = make(HERE, setting).reconcile([LiveTrial(3, 2, ("slot:0",), 5)])
    setting.hub.close()
    assert isinstance(lost, TrialExited)
    assert (lost.trial, lost.incarnation, lost.outcome) == (3, 2, "lost")

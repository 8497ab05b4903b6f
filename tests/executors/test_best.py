"""``best/``: whole at every moment, outlives the trial's own clean-up."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.commands import KeepBest
from gpusched.executors import best
from gpusched.executors.best import keep_best
from gpusched.executors.live import LiveExecutor, Setting
from gpusched.folder.paths import ExperimentPaths
from tests.executors.conftest import recipe
from tests.rig import refusing


def checkpoint(paths: ExperimentPaths, trial: int, step: int, content: str = "state") -> Path:
    folder = paths.trial(trial).checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "state.pt").write_text(content)
    (folder / "manifest.json").write_text("{}")
    paths.trial(trial).hparams.write_text(json.dumps({"trial": trial, "hparams": {"lr": 0.1}}))
    return folder


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    return ExperimentPaths(tmp_path)


def keep(paths: ExperimentPaths, trial: int, step: int, value: float = 0.9) -> bool:
    return keep_best(paths, KeepBest(trial, step, value, 2), "accuracy")


def test_the_first_and_the_next(paths: ExperimentPaths) -> None:
    checkpoint(paths, 1, 5, "one")
    checkpoint(paths, 2, 7, "two")
    for trial, step, content in ((1, 5, "one"), (2, 7, "two")):
        assert keep(paths, trial, step)
        assert paths.best.is_symlink()
        assert (paths.best / "checkpoint" / "state.pt").read_text() == content
        assert (paths.best / "checkpoint" / "manifest.json").exists()
        assert json.loads((paths.best / "hparams.json").read_text())["trial"] == trial
        metric = json.loads((paths.best / "metric.json").read_text())
        del metric["crc"], metric["hparams_crc32"]
        assert metric == {
            "trial": trial,
            "step": step,
            "metric": "accuracy",
            "value": 0.9,
            "atoms": 2,
        }
        assert len(list(paths.bests.iterdir())) == 1, "older ones go"


def test_twice_is_once_and_a_step_that_was_trained_again_is_another_model(
    paths: ExperimentPaths,
) -> None:
    folder = checkpoint(paths, 1, 5)
    keep(paths, 1, 5)
    before = paths.best.readlink()
    assert keep(paths, 1, 5)
    assert paths.best.readlink() == before
    assert (folder / "state.pt").stat().st_nlink == 2, "a link, no copy"
    shutil.rmtree(folder)
    assert (paths.best / "checkpoint" / "state.pt").read_text() == "state"
    checkpoint(paths, 1, 5, "better")
    assert keep(paths, 1, 5, 0.95)
    assert (paths.best / "checkpoint" / "state.pt").read_text() == "better"


def test_without_a_checkpoint_the_old_best_stays(paths: ExperimentPaths) -> None:
    checkpoint(paths, 1, 5)
    keep(paths, 1, 5)
    assert not keep(paths, 2, 1)
    assert json.loads((paths.best / "metric.json").read_text())["trial"] == 1


def test_leftovers_of_a_crash_or_of_a_copy_are_no_hindrance(paths: ExperimentPaths) -> None:
    checkpoint(paths, 1, 5)
    (paths.bests / ".1.tmp" / "checkpoint").mkdir(parents=True)
    (paths.best.with_name(".best.tmp")).symlink_to("nowhere")
    assert keep(paths, 1, 5)
    assert (paths.best / "checkpoint" / "state.pt").exists()
    assert [entry.name for entry in paths.bests.iterdir()] == ["1"]
    assert not paths.bests.name.startswith("."), "cp -r runs/x/* takes it along"
    # ``scp -r``, ``zip -r``: on the other machine the link is a folder.
    shutil.copytree(paths.best.resolve(), copy := paths.root / "copy")
    paths.best.unlink()
    copy.rename(paths.best)
    checkpoint(paths, 2, 7)
    assert keep(paths, 2, 7)
    assert paths.best.is_symlink()
    assert [entry.name for entry in paths.bests.iterdir()] == ["2"]


class Keeper(LiveExecutor):
    keep_out: Any = None
    readings: Any = None


def test_a_best_model_that_a_full_disk_refuses_is_kept_later(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(paths, 1, 5)
    now_s = [0.0]
    setting = Setting(
        paths=paths,
        recipe=recipe(paths.root),
        hub=None,  # nothing is said on it here
        clock=lambda: now_s[-1],
    )
    keeper = Keeper(setting)
    with monkeypatch.context() as patch:
        patch.setattr(best, "write_durably", refusing(errno.ENOSPC))
        keeper._keep_best(KeepBest(1, 5, 0.9, 2))
    now_s += [3600.0]
    keeper._timers.run_due()
    assert json.loads((paths.best / "metric.json").read_text())["atoms"] == 2

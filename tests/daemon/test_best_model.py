"""``gpusched.load`` gives the best model, whole, or a reason."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpusched
from gpusched.core.commands import KeepBest
from gpusched.daemon import best_model as result
from gpusched.errors import DamagedState, InputError, NoTrialSucceeded
from gpusched.executors.best import keep_best
from gpusched.folder import find
from gpusched.folder.files import private_folder
from gpusched.folder.paths import ExperimentPaths
from gpusched.worker import checkpoint
from gpusched.worker.checkpoint import CheckpointStore
from gpusched.worker.hparams import PlainState
from gpusched.worker.state import save_object


def keep(paths: ExperimentPaths, step: int, **more: Any) -> None:
    """Save a model whose weights are its step, and ``more`` as a rank saves it; make it the best."""
    trial = paths.trial(4)
    private_folder(trial.root)
    state = io.BytesIO()
    tracked = {name: save_object(name, value) for name, value in more.items()}
    tracked["model"] = {"weight": torch.full((3,), float(step))}
    torch.save({"tracked": tracked}, state)
    store = CheckpointStore(trial.checkpoints)
    own = store.open_folder() / "ranks"  # as a trainer's, which every rank writes to
    own.mkdir()
    (own / "0").write_text(f"{step}")
    store.write(step, {"state.pt": state.getbuffer()}, {}, own.parent)
    trial.hparams.write_text('{"trial": 4, "seed": 5, "hparams": {"opt": {"lr": 0.25}}}')
    assert keep_best(paths, KeepBest(4, step, step / 8, 2), "accuracy")


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentPaths:
    root = tmp_path / "runs" / "train-20260101-120000"
    private_folder(root.parent)
    private_folder(root)
    (root / "journal.db").touch()
    monkeypatch.chdir(tmp_path)
    return ExperimentPaths(root)


@pytest.mark.parametrize("named", [None, "last", "train", "runs/train-20260101-120000", Path])
def test_the_best_model_by_every_name(paths: ExperimentPaths, named: Any) -> None:
    keep(paths, 1)
    keep(paths, 2)
    best = gpusched.load(paths.root if named is Path else named)
    assert torch.equal(best.state["model"]["weight"], torch.full((3,), 2.0))
    assert (best.metric, best.value, best.step, best.atoms) == ("accuracy", 0.25, 2, 2)
    assert (best.trial, best.seed, best.hparams) == (4, 5, {"opt": {"lr": 0.25}})
    assert best.experiment == paths.root.name
    assert (best.folder / "ranks" / "0").read_text() == "2"
    best.state["model"]["weight"].zero_()
    assert gpusched.load().state["model"]["weight"].sum() == 6, "what is loaded is the caller's own"


class Classifier:
    def __init__(self) -> None:
        self.weights: list[float] = []


def test_pickled_models_and_numpy_arrays_are_loaded_as_they_were(
    paths: ExperimentPaths,
) -> None:
    trained, loaded = Classifier(), Classifier()
    trained.weights = [1.0, 2.0]
    keep(paths, 1, clf=gpusched.pickled(trained), state=PlainState(mean=np.arange(3.0)))
    best = gpusched.load()
    gpusched.pickled(loaded).load_state_dict(best.state["clf"])
    assert loaded.weights == [1.0, 2.0]
    assert isinstance(best.state["state"]["mean"], np.ndarray)
    assert best.state["state"]["mean"].tolist() == [0, 1, 2]


def test_a_model_that_is_replaced_while_it_is_read(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(paths, 1)
    verify, tries = checkpoint.verify, []

    def replaced(folder: Path, step: int) -> checkpoint.Checkpoint:
        tries.append(step)
        if len(tries) < 3:
            keep(paths, step + 1)
        return verify(folder, step)

    monkeypatch.setattr(checkpoint, "verify", replaced)
    best = gpusched.load()
    assert (tries, best.step, best.state["model"]["weight"][0]) == ([1, 2, 3], 3, 3.0)


def test_what_is_wrong_is_said(paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FRESH_S", -1.0)
    with pytest.raises(InputError, match="no search is called 'other' in runs/"):
        gpusched.load("other")
    with pytest.raises(NoTrialSucceeded, match="no trial has saved a model yet"):
        gpusched.load()
    paths.final_view.write_text("{}")
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(paths.root)
        with pytest.raises(NoTrialSucceeded, match=f"left a model; 'gpusched status {paths.root}'"):
            gpusched.load(paths.root)
    keep(paths, 1)
    file = paths.best / "checkpoint" / "state.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedState, match=r"cannot be loaded: state\.pt is not what was written"):
        gpusched.load()
    file.unlink()
    with pytest.raises(DamagedState, match=r"state\.pt is missing"):
        gpusched.load()
    (paths.best / "metric.json").write_text("[]")
    with pytest.raises(DamagedState, match="description cannot be read"):
        result.describe(find.find(None, Path("runs")))

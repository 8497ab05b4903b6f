"""Every recipe trains, is resized and continues, on one rank and on two, on data made here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gpusched.cli import main
from tests.recipes.conftest import RECIPES, launch, reported, start
from tests.worker.fakes import Bench, at_step


@dataclass
class Case:
    """A small trial of a recipe. ``after``: where in its data it is then, as (epoch, samples of it consumed), by step.

    It takes two steps on one rank and two more on two.
    """

    name: str
    metric: str
    loss: str
    hparams: dict[str, Any]
    after: dict[int, tuple[int, int]]
    where: str
    data: str = ""


CASES = [
    Case(
        name="cifar10",
        metric="accuracy",
        loss="loss",
        hparams={"model": "shufflenet_v2", "lr": 0.02},
        after={2: (2, 0), 4: (4, 0)},
        where="data",
        data="cifar10",
    ),
    Case(
        name="imagenet",
        metric="accuracy",
        loss="loss",
        hparams={
            **{"model": "shufflenet_v2_x0_5", "lr": 0.02, "momentum": 0.0, "side": 64},
            **{"batch": 4, "updates": 3, "validation_batches": 2, "workers": 1},
        },
        # 36 images: 2 x 3 x 4 on one rank; on two 8, the 4 that are left, 8 of the next epoch; 3 x 8.
        after={2: (0, 24), 4: (1, 32)},
        where="data",
        data="imagenet",
    ),
    Case(
        name="babi",
        metric="accuracy",
        loss="loss",
        hparams={"questions": 100, "optimizer": "adam"},
        after={2: (2, 0), 4: (4, 0)},
        where="data",
    ),
    Case(
        name="charlm",
        metric="bits",
        loss="trained",
        hparams={"width": 16, "depth": 1, "context": 16, "batch": 8, "updates": 4, "lr": 0.01},
        after={2: (0, 64), 4: (0, 64 + 128)},
        where="text",
        data="text.txt",
    ),
]


BABI = "qa1_single-supporting-fact_train.txt"


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.slow] if c.name == "cifar10" else []) for c in CASES],
    ids=lambda case: case.name,
)
def test_it_trains_on_one_rank_and_continues_on_two(case: Case, bench: Bench, data: Path) -> None:
    where = {case.where: str(data / case.data)} if case.data else {}
    bench.prepare({**case.hparams, **where}, metric=case.metric, max_steps=4)
    launch(bench, case.name, 1, 1, at_step(**{"yield": 2}))
    assert position(bench, step=2) == case.after[2]
    launch(bench, case.name, 2, 2, at_step())
    assert bench.last_word(2) == {"why": "finished", "step": 4, "saved_step": 4}
    assert position(bench, step=4) == case.after[4]
    assert [step for step, _ in reported(bench)] == [1, 2, 3, 4]
    values = [metrics[case.metric] for _, metrics in reported(bench)]
    losses = [metrics[case.loss] for _, metrics in reported(bench)]
    assert all(math.isfinite(value) for value in values + losses)
    assert min(losses[2:]) < losses[0]


def position(bench: Bench, step: int) -> tuple[int, int]:
    """Epoch and samples of it consumed, as the checkpoint has them."""
    state = torch.load(bench.paths.checkpoint(step) / "state.pt", weights_only=True)
    (loader,) = state["loaders"]
    return loader["epoch"], loader["consumed"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_its_data_it_says_what_to_get_and_ends(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # no download leaves this machine
    (ended,) = start(case.name, f"--{case.where}", str(tmp_path / "nowhere"))
    assert ended.code == 1
    assert str(tmp_path / "nowhere") in ended.stderr
    assert "https://" in ended.stderr
    assert f"--{case.where}" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.error


@pytest.mark.parametrize(
    ("words", "files", "told"),
    [
        ("babi --optimizer lion", {}, "'lion' is not one of rmsprop, adam, sgd"),
        ("babi --data {folder}", {BABI: ""}, f"{BABI} is not in bAbI's format: it asks nothing"),
        (
            "babi --data {folder}",
            {BABI: "1 Where is Mary? \tbathroom\n"},
            "not enough values to unpack",
        ),
        ("cifar10 --data {data}/cifar10 --model resnet19", {}, "'resnet19' is not one of resnet18"),
        (
            "charlm --text {folder}/short.txt",
            {"short.txt": "too short"},
            "has 9 bytes: give a plain text of",
        ),
    ],
)
def test_what_a_recipe_is_given_wrongly_is_named(
    words: str, files: dict[str, str], told: str, data: Path, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (ended,) = start(*words.format(data=data, folder=tmp_path).split())
    assert ended.code == 1
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "ranks"), [("babi --questions 50", 2), ("digits", 2), ("cartpole", 1)]
)
def test_a_recipe_runs_under_plain_torchrun_and_alone(words: str, ranks: int) -> None:
    told = "gpusched: outside a search nothing is saved: save the model yourself\n"
    for rank, ended in enumerate(start(*words.split(), "--max-steps", "1", ranks=ranks)):
        assert ended.code in (None, 0)
        assert not ended.error
        assert ended.stderr == told * (rank == 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_script_has_a_default_for_all_that_the_recipe_searches(
    case: Case, recipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(RECIPES / f"{case.name}.yaml"), "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)["first"][0]
    defaults = recipe(case.name).DEFAULTS
    assert set(drawn) <= set(defaults)
    assert {name: type(value) for name, value in drawn.items()} == {
        name: type(defaults[name]) for name in drawn
    }

"""Values of a recipe's ``env``: what may stand on the disk, and where the rest comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.errors import InputError
from gpusched.recipe.env import filled_in, for_disk, from_elsewhere, may_be_written
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe
from tests.recipe.conftest import GOOD, Load


@pytest.mark.parametrize(
    "pair",
    [
        *("OMP_NUM_THREADS=4", "NCCL_DEBUG=WARN", "TOKENIZERS_PARALLELISM=false", "EMPTY="),
        *("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTHONPATH=/home/me/lib:/opt/lib"),
        *("HF_HOME=/scratch/hf", "DATA=/data/imagenet", "DATA=../data/v1.5/", "WORKERS=8"),
        *("RATE=1e-4", "FAST=on", "WANDB_MODE=offline"),
    ],
)
def test_what_may_be_written(pair: str) -> None:
    name, _, value = pair.partition("=")
    assert may_be_written(name, value)


@pytest.mark.parametrize(
    "pair",
    [
        *("HF_TOKEN=hf_abcdefgh", "WANDB_API_KEY=0", "AWS_SECRET_ACCESS_KEY=/looks/like/a/path"),
        *("PYTHON_PASSWORD=4", "NCCL_AUTH=x", "DB=postgres://me:pw@host/db", "DB=hunter2"),
        *(
            "X=correct horse",
            "X=ghp_0123456789abcdef0123456789abcdef0123",
            "X=00000000000000000001",
        ),
        *(f"X=/{'a' * 65}", "OMP_X=https://user:pw@host", f"TORCH_X={'y' * 1001}", "sentry_dsn=1"),
        "MyKey=line\nline",
    ],
)
def test_what_is_not(pair: str) -> None:
    name, _, value = pair.partition("=")
    assert not may_be_written(name, value)
    assert for_disk({name: value}) == {name: None}


def test_the_recipe_on_disk_has_all_names_and_loads_back(load: Load, tmp_path: Path) -> None:
    recipe = load("env: {HF_TOKEN: sesame, OMP_NUM_THREADS: 2, GIVEN: }\n")
    assert recipe.env == {"HF_TOKEN": "sesame", "OMP_NUM_THREADS": "2", "GIVEN": None}
    kept = recipe.for_disk()
    assert kept.env == {"HF_TOKEN": None, "OMP_NUM_THREADS": "2", "GIVEN": None}
    assert "sesame" not in kept.to_yaml()
    assert Recipe.from_resolved(kept.resolved()) == kept
    again = tmp_path / "again.yaml"
    again.write_text(kept.to_yaml())
    assert load_recipe(again) == kept


def test_values_come_from_the_environment_then_from_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(GOOD + "env: {GT_A: file, GT_B: file, GT_C: }\n")
    wanted = {"GT_A": None, "GT_B": None, "KNOWN": "1"}
    monkeypatch.setenv("GT_A", "environment")
    assert from_elsewhere(wanted, recipe) == {"GT_A": "environment", "GT_B": "file"}
    assert filled_in({**wanted, "GT_B": "x"}, {}) == {
        "GT_A": "environment",
        "GT_B": "x",
        "KNOWN": "1",
    }
    with pytest.raises(InputError, match=r"no value for GT_C, GT_D: not in the environment nor in"):
        from_elsewhere({**wanted, "GT_C": None, "GT_D": None}, recipe)
    for damage in ("env: [1", "env: 5\n", "\0"):
        recipe.write_text(damage)
        with pytest.raises(InputError, match="no value for GT_B"):
            from_elsewhere(wanted, recipe)

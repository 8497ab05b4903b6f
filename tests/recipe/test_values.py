"""Values that can be written in several ways, and values of ``env``: what may stand on the disk."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.errors import InputError
from gpusched.recipe import values
from gpusched.recipe.env import filled_in, for_disk, from_elsewhere, may_be_written
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe
from tests.recipe.conftest import GOOD, Load


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *[(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400)],
        *[("2d", 172_800), ("1.5h", 5400), ("1d 2h 3m 4s", 93_784), (" 10m ", 600), ("1h4s", 3604)],
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert values.duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *[None, True, [], {}, "", " ", "m", "10 minutes", "1m1h", "1h1h", "-1s", "0", 0, -1, 0.0],
        *["1e3", "inf", "nan", float("nan"), float("inf"), "١٠m", "9" * 400, "1e999s", "0s", "0d"],
    ],
)
def test_no_durations(written: object) -> None:
    with pytest.raises(ValueError, match=r"duration|must be more than 0|more than ten years"):
        values.duration(written)


@given(st.text(alphabet="0123456789dhms. -", max_size=30))
def test_any_duration_is_within_bounds_or_refused(text: str) -> None:
    try:
        seconds = values.duration(text)
    except ValueError:
        return
    assert 0 < seconds <= values.MAX_DURATION_S


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *[("auto", "auto"), ("cpu", "cpu"), ("cpu:4", "cpu:4"), ("cuda", "cuda")],
        *[("cuda:0,2", "cuda:0,2"), ("cuda: 0, 2", "cuda:0,2"), ("cpu:04", "cpu:4")],
        ("GPU-1a2b3c4d", ("GPU-1a2b3c4d",)),
        (["GPU-1a2b3c4d", "MIG-5e6f7a8b"], ("GPU-1a2b3c4d", "MIG-5e6f7a8b")),
    ],
)
def test_devices(written: object, read: object) -> None:
    assert values.devices(written) == read


@pytest.mark.parametrize(
    "written",
    [
        "",
        "cpu:",
        "cpu:x",
        "cpu:4096",
        "cuda:",
        "cuda:,",
        "cuda:1,1",
        "tpu",
        4,
        None,
        True,
        ["GPU-"],
    ],
)
def test_no_devices(written: object) -> None:
    with pytest.raises(ValueError, match=r"cpu|GPU|slots"):
        values.devices(written)


@pytest.mark.parametrize(
    ("written", "read"),
    [("linear", 1.0), (1, 1.0), (1.0, 1.0), ("sqrt", 0.5), (0.5, 0.5), ("none", 0.0), (0, 0.0)],
)
def test_powers(written: object, read: float) -> None:
    assert values.power(written) == read


@pytest.mark.parametrize("written", [True, False, None, "1", 0.7, [], "Linear"])
def test_no_powers(written: object) -> None:
    with pytest.raises(ValueError, match="should be linear"):
        values.power(written)


def test_a_scaling_table_is_sorted_and_of_floats() -> None:
    assert list(values.scaling({"4": 3, "1": 1, "2": 1.9}).items()) == [(1, 1), (2, 1.9), (4, 3)]


@pytest.mark.parametrize(
    "written", [None, {}, "liner", {"0": 1}, {"2": 0}, {"2": True}, {"2": "1"}, {"1": 2}, {"-1": 1}]
)
def test_no_scaling(written: object) -> None:
    with pytest.raises(ValueError, match=r"should be|not a number of atoms|by definition"):
        values.scaling(written)


NOON = datetime(2026, 5, 4, 12, 0).astimezone()


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("18:30", 23400.0),
        ("12:01", 60.0),
        ("2026-05-05 08:00", 72000.0),
        ("2026-05-04t12:01", 60.0),
        ("10m", 600.0),
        (5, 5.0),
    ],
)
def test_deadlines_by_the_clock(written: object, seconds: float) -> None:
    assert values.deadline(written, NOON) == seconds


def test_a_time_of_day_that_has_been_is_tomorrows() -> None:
    tomorrow = datetime(2026, 5, 5, 12, 0).astimezone()
    assert values.deadline("12:00", NOON) == (tomorrow - NOON).total_seconds()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("2026-05-04 08:00", "is past: now is 2026-05-04 12:00"),
        ("2026-05-04", "not a time; write 18:30"),
        ("25:00", "hour must be in"),
        ("1:30", "or a time of day, 18:30"),
        ("9999-12-31 23:59", "more than ten years away"),
        (0, "more than 0 seconds, not 0$"),
    ],
)
def test_no_deadlines(written: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        values.deadline(written, NOON)


# ---------------------------------------------------------------- env: what may stand on the disk


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

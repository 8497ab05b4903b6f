"""Values that can be written in several ways, and values of ``env``."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.errors import InputError
from gpusched.recipe import values
from tests.recipe.conftest import Load


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *[(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400)],
        *[("2d", 172_800), ("1.5h", 5400), ("1d 2h 3m 4s", 93_784), (" 10m ", 600), ("1h4s", 3604)],
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert values.duration(written) == seconds


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
        ("GPU-1a2b3c4d, GPU-5e6f", "GPU-1a2b3c4d,GPU-5e6f"),
        (["GPU-1a2b3c4d", "MIG-5e6f7a8b"], "GPU-1a2b3c4d,MIG-5e6f7a8b"),
    ],
)
def test_devices(written: object, read: object) -> None:
    assert values.devices(written) == read


@pytest.mark.parametrize(
    ("written", "read"),
    [("linear", 1.0), (1, 1.0), (1.0, 1.0), ("sqrt", 0.5), (0.5, 0.5), ("none", 0.0), (0, 0.0)],
)
def test_powers(written: object, read: float) -> None:
    assert values.power(written) == read


def test_a_scaling_table_is_sorted_and_of_floats() -> None:
    assert list(values.scaling({"4": 3, "1": 1, "2": 1.9}).items()) == [(1, 1), (2, 1.9), (4, 3)]


NOON = datetime(2026, 5, 4, 12, 0).astimezone()
at_noon = partial(values.deadline, now=NOON)


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
    assert at_noon(written) == seconds


def test_a_time_of_day_that_has_been_is_tomorrows() -> None:
    tomorrow = datetime(2026, 5, 5, 12, 0).astimezone()
    assert at_noon("12:00") == (tomorrow - NOON).total_seconds()


REFUSED = {
    r"duration|must be more than 0|more than ten years": (
        values.duration,
        *(None, True, [], {}, "", " ", "m", "10 minutes", "1m1h", "1h1h", "-1s", "0", 0, -1, 0.0),
        *("inf", "nan", float("nan"), float("inf"), "١٠m", "9" * 400, "1e999s", "0s", "0d"),
    ),
    r"cpu|GPU|slots": (
        values.devices,
        *("", "cpu:", "cpu:x", "cpu:4096", "cuda:", "cuda:,", "tpu", 4, None, True, ["GPU-"]),
    ),
    "should be linear": (values.power, True, False, None, "1", 0.7, [], "Linear"),
    r"should be|must be|by definition": (
        values.scaling,
        *(None, {}, "liner", {"0": 1}, {"2": 0}, {"2": True}, {"2": "1"}, {"1": 2}, {"-1": 1}),
    ),
    "is past: now is 2026-05-04 12:00": (at_noon, "2026-05-04 08:00"),
    "not a time; write 18:30 or 2026-05-04T08:00": (at_noon, "2026-05-04", "25:00"),
    "or a time of day, 09:30": (at_noon, "9:00"),
    "more than ten years": (at_noon, "9999-12-31 23:59"),
    "more than 0 seconds, not 0$": (at_noon, 0),
}


@pytest.mark.parametrize(
    ("told", "read", "written"),
    [(told, read, one) for told, (read, *wrong) in REFUSED.items() for one in wrong],
)
def test_refused(told: str, read: values.Reader, written: object) -> None:
    with pytest.raises(ValueError, match=told):
        read(written)


@pytest.mark.parametrize(
    "pair",
    [
        *("MAX_TOKENS=512", "SSH_KEY=/home/me/.ssh/id", "KEY_PATH=keys/a.pem", "SORT_KEY=length"),
        *("DB=postgres://host/db", "AUTH_MODE=basic", "PAD_TOKEN=<pad>", "PIN_MEMORY=always"),
        *("DATA=/mnt/disk-training", "TASK=mask-generation-of-text", "HF_HOME=hf_datasets"),
    ],
)
def test_what_the_environment_may_hold(pair: str) -> None:
    name, _, value = pair.partition("=")
    assert values.environment({name: value}) == {name: value}


@pytest.mark.parametrize(
    "pair",
    [
        *("HF_TOKEN=hf_abcdefghijklmnop", "WANDB_API_KEY=0" * 9, "PYTHON_PASSWORD=hunter2"),
        *("DB=postgres://me:pw@host/db", "OPENAI=sk-a1b2c3d4e5f6a1b2"),
    ],
)
def test_secrets_do_not_belong_into_a_recipe(pair: str) -> None:
    name, _, value = pair.partition("=")
    with pytest.raises(ValueError, match=rf"{name} is a secret.* leave the value out"):
        values.environment({name: value})


def test_values_that_are_left_out_come_from_the_environment(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load("env: {GT_A: , GT_B: file}\n")
    with pytest.raises(InputError, match=r"env: no value for GT_A: set it"):
        recipe.with_environment()
    monkeypatch.setenv("GT_A", "sesame")
    assert recipe.with_environment().env == {"GT_A": "sesame", "GT_B": "file"}
    assert "sesame" not in str(recipe.resolved())

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from gpusched.protocol import Report
from gpusched.worker.reports import clean_metrics, shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (3, 3),
        (True, 1),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (10**400, "inf"),
        (-(10**400), "-inf"),
        (1 << 62, 1 << 62),
        (1 << 70, float(1 << 70)),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(0.25), 0.25),
        (np.array([0.25]), 0.25),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([2]), 2),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(math.nan), "nan"),
    ],
)
def test_what_counts_as_a_number(value: Any, expected: Any) -> None:
    clean = clean_metrics({"m": value}, None)["m"]
    assert clean == expected
    assert type(clean) is type(expected)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0.5", "'m' is str '0.5', not a number"),
        (None, "'m' is NoneType None, not a number"),
        ([0.5], r"'m' is list \[0.5\], not a number"),
        (1j, "'m' is complex 1j, not a number"),
        (torch.zeros(3), r"'m' has shape \(3,\): report one number, e.g. m.mean\(\)"),
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
        ("x" * 1000, r"xxx\.\.\., not a number"),
    ],
)
def test_what_does_not(value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        clean_metrics({"accuracy": 0.5, "m": value}, "accuracy")


def test_the_recipes_metric_must_be_there() -> None:
    with pytest.raises(
        ValueError, match=r"has loss, val_accuracy but not 'accuracy'.*metric: val_accuracy"
    ):
        clean_metrics({"loss": 1.0, "val_accuracy": 0.5}, "accuracy")
    with pytest.raises(ValueError, match=r"report lacks 'accuracy'"):
        clean_metrics({}, "accuracy")


def test_a_line_for_people() -> None:
    assert shown(Report(1, 3, 3, 0.5, {"accuracy": 0.97123456, "n": 4, "loss": "nan"})) == (
        "step 3  accuracy 0.971235  n 4  loss nan  (0.50 s)"
    )

"""Normalised metrics and curves (HyperDrive, equation 4)."""

from __future__ import annotations

import math

import pytest

from gpusched.core.trial import TrialRecord
from gpusched.policies.scale import MAX_CURVE, Scale, bounds_problems, curve_of


def test_equation_4() -> None:
    scale = Scale(-500.0, 300.0, 1.0)
    assert scale.of_metric(200.0) == pytest.approx(0.875)
    assert scale.metric(0.875) == pytest.approx(200.0)


def test_less_is_better_turns_it_round() -> None:
    scale = Scale(0.0, 4.0, -1.0)
    assert scale.of_metric(1.0) == 0.75
    assert scale.of_score(-1.0) == 0.75
    assert scale.metric(0.75) == 1.0


def test_what_lies_beyond_the_bounds_counts_as_the_bound() -> None:
    scale = Scale(0.0, 1.0, 1.0)
    assert (scale.of_metric(-3.0), scale.of_metric(3.0)) == (0.0, 1.0)
    assert scale.of_score(-math.inf) == 0.0


def trial(curve: list[tuple[int, float]]) -> TrialRecord:
    return TrialRecord(0, {}, curve=curve)


def test_a_curve_has_one_finite_value_a_step() -> None:
    nan = math.nan
    curve, stride = curve_of(
        trial([(1, nan), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35), (5, nan), (6, 0.6)]),
        Scale(0.0, 1.0, 1.0),
    )
    # Steps 2 and 3 were trained twice, 4 was not reported, 1 and 5 were not finite.
    assert curve == (0.25, 0.25, 0.35, 0.35, 0.35, 0.6)
    assert stride == 1


def test_a_long_curve_is_thinned_and_keeps_its_last_value() -> None:
    curve, stride = curve_of(
        trial([(step, step / 1000) for step in range(1, 1001)]), Scale(0.0, 1.0, 1.0)
    )
    assert stride == 4
    assert len(curve) == 250 <= MAX_CURVE
    assert (curve[0], curve[-1]) == (0.004, 1.0)


def test_nothing_finite_is_no_curve() -> None:
    assert curve_of(trial([(1, math.nan)]), Scale(0.0, 1.0, 1.0))[0] == ()
    assert curve_of(trial([]), Scale(0.0, 1.0, 1.0))[0] == ()


def test_missing_bounds_are_a_problem_only_where_they_are_needed() -> None:
    assert list(bounds_problems(None, None)) == []
    ((option, message),) = bounds_problems(None, None, needed_by="pop")
    assert option == "metric_min"
    assert "pop needs a bounded metric" in message

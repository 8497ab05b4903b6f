"""``earlyterm``: the predictive termination criterion as HyperDrive (Middleware'17) states it in section 5.3."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.policies.earlyterm import Options
from tests.policies.hand import Hand

SMALL: dict[str, Any] = {"b": 3, "R": 9, "metric_min": 0.0, "metric_max": 1.0}


def test_the_defaults_are_the_papers() -> None:
    """5.3: "we use the same b value of 30 and delta to 0.05"."""
    assert (Options().b, Options().delta, Options().predictor) == (30, 0.05, "mcmc")


def test_every_bth_step_the_curve_is_extrapolated_to_R_against_the_best_so_far() -> None:
    """5.3: p_val = P(y_m >= y_hat | y_1:n), m "the max epoch", y_hat "the global best model performance seen"."""
    hand = Hand("earlyterm", SMALL, atoms=2)
    hand.train(0, [0.5, 0.8])
    hand.train(1, [0.1, 0.2])
    assert hand.forecasts == []
    hand.report(1, 0.3)
    (asked,) = hand.forecasts
    assert (asked.trial, asked.step, asked.curve) == (1, 3, (0.1, 0.2, 0.3))
    assert (asked.horizon, asked.target) == (9, 0.8)
    hand.train(1, [0.4, 0.5, 0.6])
    assert hand.forecasts[-1].curve == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def test_a_trial_without_a_chance_is_stopped() -> None:
    """5.3: "if p_val < delta then the job is immediately terminated"."""
    hand = Hand("earlyterm", SMALL, atoms=1)
    hand.train(0, [0.1] * 3)
    hand.answer(0, reached_at_end=0.049, mean=0.2)
    hand.report(0, 0.1)
    assert hand.where(0) == "stopped"
    assert "a probability of 0.049" in hand.said
    assert hand.live == [1]


def test_it_trains_on_while_the_forecast_is_made() -> None:
    """5.2: "overlap training and prediction"."""
    hand = Hand("earlyterm", SMALL, atoms=1)
    hand.train(0, [0.1] * 5)
    assert hand.where(0) == "running"


@pytest.mark.parametrize("answer", [{}, {"mean": 0.1}])
def test_an_empty_answer_changes_nothing(answer: dict[str, float]) -> None:
    hand = Hand("earlyterm", SMALL, atoms=1)
    hand.train(0, [0.1] * 3)
    hand.answer(0, **answer)
    hand.report(0, 0.1)
    assert hand.where(0) == "running"


def test_losses_and_bounds_are_turned_to_a_scale() -> None:
    hand = Hand("earlyterm", {**SMALL, "metric_max": 4.0}, atoms=1, mode="min")
    hand.train(0, [4.0, 3.0, 1.0])
    assert hand.forecasts[0].curve == (0.0, 0.25, 0.75)
    assert hand.forecasts[0].target == 0.75


def test_non_finite_metrics_never_reach_the_predictor() -> None:
    hand = Hand("earlyterm", SMALL, atoms=2)
    hand.train(0, [0.1, None, 0.3])
    assert hand.forecasts[0].curve == (0.1, 0.1, 0.3)
    hand.train(1, [0.1, 0.2, None])
    assert len(hand.forecasts) == 1


def test_a_long_curve_is_thinned_and_so_is_the_way_to_R() -> None:
    hand = Hand("earlyterm", {**SMALL, "b": 1000, "R": 2000}, atoms=1)
    for _ in range(1000):
        hand.report(0, 0.5)
    (asked,) = hand.forecasts
    assert len(asked.curve) == 250
    assert asked.horizon == 500


def test_the_real_predictor_ends_a_flat_trial_and_keeps_a_rising_one() -> None:
    from gpusched.driver.forecaster import InlineForecaster

    hand = Hand("earlyterm", {**SMALL, "b": 10, "R": 40}, atoms=3)
    forecaster = InlineForecaster("shapes")
    hand.train(0, [0.9 - 0.8 * 0.8**step for step in range(20)])
    hand.train(1, [0.1 + 0.001 * (step % 2) for step in range(10)])
    hand.train(2, [0.95 - 0.85 * 0.9**step for step in range(10)])
    for asked in hand.forecasts:
        forecaster.submit(asked)
    for event in forecaster.poll(0.0):
        hand.send(event)
    hand.report(1, 0.1)
    hand.report(2, 0.6)
    assert hand.where(1) == "stopped"
    assert hand.where(2) == "running"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"metric_min": None, "metric_max": None}, "metric_min"),
        ({"metric_max": None}, "metric_max"),
        ({"metric_max": 0.0}, "metric_max"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"b": 0}, "b"),
        ({"b": 9}, "b"),
        ({"R": None}, "R"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], named: str) -> None:
    assert [name for name, _ in Options(**{**SMALL, **options}).problems()] == [named]

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

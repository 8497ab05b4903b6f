"""From a curve to the numbers of an answer: equations 1 to 3 of HyperDrive (Middleware'17, 3.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from gpusched.core.decisions import Forecast
from gpusched.policies.curves.forecast import MAX_STEPS, forecast, remaining
from gpusched.policies.curves.predictor import Array, Prediction, make_predictor


class Straight:
    """y(m) ~ Normal(0.1 * m, 0.1): everything about it can be worked out by hand."""

    asked: Array

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        self.asked, self.seed = steps, tuple(seed)
        means = 0.1 * steps[None, :]
        return Prediction(steps, means, np.full_like(means, 0.1), np.ones(1))


def ask(horizon: int, target: float, curve: tuple[float, ...] = (0.1, 0.2, 0.3)) -> Forecast:
    return Forecast(trial=7, step=3, curve=curve, horizon=horizon, target=target)


def test_p_and_x_by_hand() -> None:
    """P(1) = 0.1, P(2) = 0.4, P(3) = 0.9: p_m = 0.1, 0.3, 0.5; x = 1*0.1 + 2*0.3 + 3*0.5."""
    p, x = remaining(np.array([0.1, 0.4, 0.9]))
    assert (p, x) == pytest.approx((0.9, 2.2))


def test_a_chance_that_falls_again_has_still_been_reached() -> None:
    p, x = remaining(np.array([0.5, 0.2, 0.6]))
    assert p == pytest.approx(0.6)
    assert x == pytest.approx(1 * 0.5 + 3 * 0.1)


def test_every_step_to_the_horizon_counts() -> None:
    """Equation 1 for m = 4, 5, 6: P(y(m) >= 0.5) with y(m) ~ Normal(0.1 m, 0.1)."""
    found = forecast(ask(6, 0.5), Straight(), seed=1)
    chances = [1 - stats.norm.cdf(0.5, 0.1 * m, 0.1) for m in (4, 5, 6)]
    each = np.diff([0.0, *chances])
    assert found["reached_by_end"] == pytest.approx(chances[-1])
    assert found["reached_at_end"] == pytest.approx(chances[-1])
    assert found["remaining_steps"] == pytest.approx(1 * each[0] + 2 * each[1] + 3 * each[2])


def test_mean_spread_and_interval_are_those_at_the_horizon() -> None:
    found = forecast(ask(6, 0.5), Straight(), seed=1)
    assert found["mean"] == pytest.approx(0.6)
    assert found["spread"] == 0.0
    low, high = stats.norm.interval(0.9, 0.6, 0.1)
    assert (found["low"], found["high"]) == pytest.approx((low, high))


def test_a_far_horizon_is_interpolated() -> None:
    """500 steps of which MAX_STEPS are evaluated: the same within the width of a few steps."""
    straight = Straight()
    found = forecast(ask(503, 20.0), straight, seed=1)
    assert len(straight.asked) <= MAX_STEPS
    assert (straight.asked[0], straight.asked[-1]) == (4.0, 503.0)
    assert found["reached_by_end"] == pytest.approx(1.0)
    assert found["remaining_steps"] == pytest.approx(197, rel=0.05)


def test_the_seed_is_made_of_experiment_trial_and_step() -> None:
    straight = Straight()
    forecast(ask(6, 0.5), straight, seed=11)
    assert straight.seed == (11, 7, 3)


@pytest.mark.parametrize(
    "asked", [ask(3, 0.5), ask(2, 0.5), ask(9, 0.5, (0.1, 0.2)), ask(9, 0.5, ())]
)
def test_too_little_to_say_anything_is_an_empty_answer(asked: Forecast) -> None:
    assert forecast(asked, Straight(), seed=0) == {}


def test_an_answer_is_plain_numbers() -> None:
    found = forecast(ask(30, 0.5), make_predictor("least_squares"), seed=0)
    assert {type(value) for value in found.values()} == {float}

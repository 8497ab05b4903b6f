"""Contract of ``CurvePredictor``, and whether the probabilities of a predictor mean something."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from gpusched.policies.extrapolation import (
    MAX_STEPS,
    CurvePredictor,
    Outlook,
    Prediction,
    ShapesPredictor,
    extrapolate,
    remaining,
)
from scripts.papers.mcmc import McmcPredictor

Array = NDArray[np.float64]

AHEAD = np.arange(21.0, 61.0)


def rising(length: int) -> Array:
    """An ordinary learning curve from 0.1 towards 0.8."""
    clean = 0.8 - 0.7 * np.exp(-np.arange(length) / 12.0)
    return np.asarray(clean + np.random.default_rng(0).normal(0, 0.005, length))


def synthetic(seed: int) -> Array:
    """A curve that none of the predictors was made for: two exponentials, or nothing learnt at all."""
    random = np.random.default_rng([17, seed])
    x = np.arange(60)
    noise = random.normal(0, np.exp(random.uniform(np.log(0.003), np.log(0.02))), 60)
    if random.random() < 0.25:
        return np.asarray(np.clip(random.uniform(0.05, 0.2) + noise, 0, 1))
    end, start = random.uniform(0.3, 0.95), random.uniform(0.0, 0.2)
    fast, slow = np.exp(random.uniform(0, 3)), np.exp(random.uniform(2, 4))
    share = random.random()
    fall = share * np.exp(-x / fast) + (1 - share) * np.exp(-x / slow)
    return np.asarray(np.clip(end - (end - start) * fall + noise, 0, 1))


def interval(prediction: Prediction) -> tuple[float, float]:
    """The central 90 % interval of y at the last step."""
    means, scales = prediction.means[:, -1], prediction.scales[:, -1]
    grid = np.linspace(means.min() - 6 * scales.max(), means.max() + 6 * scales.max(), 4001)
    below = prediction.weights @ special.ndtr((grid - means[:, None]) / scales[:, None])
    low, high = np.searchsorted(below, [0.05, 0.95])
    return float(grid[low]), float(grid[min(high, len(grid) - 1)])


@dataclass(frozen=True)
class Judged:
    """One forecast and what came true."""

    p: float
    reached: bool
    covered: bool


def judge(predictor: CurvePredictor, curves: list[Array]) -> Iterator[Judged]:
    """Each curve, seen up to each cut, against a target drawn from how all of them end."""
    random = np.random.default_rng(0)
    ends = np.array([curve[-1] for curve in curves])
    for trial, curve in enumerate(curves):
        for cut in (10, 20, 30):
            target = float(np.quantile(ends, random.uniform(0.05, 0.95)))
            found = predictor.predict(curve[:cut], np.array([float(len(curve))]), (0, trial, cut))
            low, high = interval(found)
            p = float(found.reaches(target)[-1])
            yield Judged(p, bool(curve[-1] >= target), bool(low <= curve[-1] <= high))


EACH = pytest.mark.parametrize(
    "predictor",
    [ShapesPredictor(), pytest.param(McmcPredictor(), marks=pytest.mark.slow)],
    ids=["shapes", "mcmc"],
)


@EACH
def test_probabilities_are_some_and_fall_with_the_target(predictor: CurvePredictor) -> None:
    found = predictor.predict(rising(20), AHEAD, (0,))
    assert found.steps.tolist() == AHEAD.tolist()
    assert found.weights.sum() == pytest.approx(1.0)
    assert (found.scales > 0).all()
    at_each = np.array([found.reaches(target) for target in (0.2, 0.5, 0.7, 0.8, 0.9, 1.5)])
    assert ((at_each >= 0) & (at_each <= 1)).all()
    assert (np.diff(at_each, axis=0) <= 1e-12).all()
    assert at_each[0, -1] > 0.95
    assert at_each[-1, -1] < 0.05


@EACH
@pytest.mark.parametrize(
    "curve",
    [
        np.full(5, 0.5),
        np.zeros(6),
        np.ones(6),
        np.array([0.1, 0.2, 0.3]),
        np.linspace(0.9, 0.2, 15),
        np.array([0.0, 1.0] * 6),
        rising(200),
    ],
    ids=["constant", "zeros", "ones", "three", "unlearning", "jumping", "long"],
)
def test_odd_curves_have_finite_forecasts(predictor: CurvePredictor, curve: Array) -> None:
    steps = np.arange(len(curve) + 1.0, len(curve) + 20.0)
    found = predictor.predict(curve, steps, (0,))
    assert np.isfinite(found.reaches(0.5)).all()
    low, high = interval(found)
    assert np.isfinite([low, high]).all()
    assert low < high


@EACH
def test_the_probabilities_mean_something(predictor: CurvePredictor) -> None:
    """Of the cases given p of 0.8 and more most come true, of those given 0.2 and less few do; of the outcomes
    nearly as many lie within the 90 % interval as it says."""
    judged = list(judge(predictor, [synthetic(seed) for seed in range(60)]))
    sure = [case.reached for case in judged if case.p >= 0.8]
    unlikely = [case.reached for case in judged if case.p <= 0.2]
    assert min(len(sure), len(unlikely)) >= len(judged) // 5
    assert statistics.fmean(sure) >= 0.85
    assert statistics.fmean(unlikely) <= 0.15
    assert statistics.fmean(case.covered for case in judged) >= 0.7
    blind = statistics.fmean(case.reached for case in judged)
    brier = statistics.fmean((case.p - case.reached) ** 2 for case in judged)
    assert brier < 0.5 * blind * (1 - blind), "hardly better than the share of all that reach it"


class Straight:
    """y(m) ~ Normal(0.1 * m, 0.1): everything about it can be worked out by hand."""

    asked: Array

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        self.asked, self.seed = steps, tuple(seed)
        means = 0.1 * steps[None, :]
        return Prediction(steps, means, np.full_like(means, 0.1), np.ones(1))


def ask(
    horizon: int,
    target: float,
    curve: tuple[float, ...] = (0.1, 0.2, 0.3),
    predictor: CurvePredictor | None = None,
) -> Outlook | None:
    return extrapolate(curve, horizon, target, predictor=predictor or Straight(), seed=(7, 3))


def test_p_and_x_by_hand() -> None:
    """P(1) = 0.1, P(2) = 0.4, P(3) = 0.9: p_m = 0.1, 0.3, 0.5; x = 1*0.1 + 2*0.3 + 3*0.5."""
    assert remaining(np.array([0.1, 0.4, 0.9])) == pytest.approx((0.9, 2.2))
    assert remaining(np.array([0.5, 0.2, 0.6])) == pytest.approx((0.6, 1 * 0.5 + 3 * 0.1))


def test_a_far_horizon_is_interpolated() -> None:
    """500 steps of which MAX_STEPS are evaluated: the same within the width of a few steps."""
    straight = Straight()
    found = ask(503, 20.0, predictor=straight)
    assert found is not None
    assert len(straight.asked) <= MAX_STEPS
    assert (straight.asked[0], straight.asked[-1], straight.seed) == (4.0, 503.0, (7, 3))
    assert found.reached_by_end == pytest.approx(1.0)
    assert found.remaining_steps == pytest.approx(197, rel=0.05)


@pytest.mark.parametrize(
    ("horizon", "curve"), [(3, (0.1, 0.2, 0.3)), (2, (0.1, 0.2, 0.3)), (9, (0.1, 0.2)), (9, ())]
)
def test_too_little_to_say_anything_is_no_answer(horizon: int, curve: tuple[float, ...]) -> None:
    assert ask(horizon, 0.5, curve) is None


def test_the_last_bits_of_numpy_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def outlooks() -> list[Outlook | None]:
        curves = [synthetic(seed)[:20] for seed in range(20)]
        return [extrapolate(c, 60, 0.6, predictor=ShapesPredictor(), seed=(0,)) for c in curves]

    here, exp = outlooks(), np.exp
    monkeypatch.setattr(np, "exp", lambda x: np.nextafter(exp(x), 2.0))
    assert outlooks() == here

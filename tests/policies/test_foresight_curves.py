"""Forecasts of ``foresight``, held against curves whose end is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from gpusched.core.trial import NEVER, TrialRecord
from gpusched.policies import foresight_curves
from gpusched.policies.foresight_curves import Belief, Curves, expected_excess

Score = Callable[[int], float]


class Trained:
    """Trials that train by functions of the step."""

    def __init__(self, sign: float = 1.0) -> None:
        self.curves, self.sign = Curves(), sign
        self.trials: dict[int, TrialRecord] = {}

    def train(self, trial_id: int, metric: Score, steps: int, every: int = 1) -> None:
        trial = self.trials.setdefault(trial_id, TrialRecord(trial_id, {}))
        for step in range(trial.step + every, steps + 1, every):
            value = metric(step)
            trial.step, trial.stride = step, every
            trial.score = NEVER if math.isnan(value) else value * self.sign
            trial.curve.append((step, value))
            self.curves.look(trial, self.sign)
        self.curves.rescale(self.trials)

    def belief(self, trial: int, step: int) -> Belief:
        return self.curves.believe({trial: step})[trial]

    def forecast(self, trial: int, step: int) -> float:
        """The metric at a later step."""
        return self.belief(trial, step).mean * self.sign


def power(fall: float) -> Score:
    return lambda step: 1.0 - 0.6 * step**-fall


def saturating(end: float, tau: float) -> Score:
    return lambda step: end * (1 - math.exp(-step / tau))


def test_a_curve_that_goes_on_is_forecast_to() -> None:
    trained = Trained()
    trained.train(9, power(0.3), 16)
    assert trained.forecast(9, 128) == pytest.approx(power(0.3)(128), abs=0.05)
    iterations = Trained()
    iterations.train(9, lambda step: power(0.3)(step // 5000), 80_000, every=5000)
    assert iterations.forecast(9, 640_000) == trained.forecast(9, 128), "a report is a report"


def test_a_curve_that_is_fast_first_and_goes_on_slowly_is_forecast_to_go_on() -> None:
    """A rate of learning that ramps, then a power law: the losses of a small transformer."""

    def falling(floor: float, fall: float) -> Score:
        def loss(step: int) -> float:
            trained = step * step / 20 if step < 10 else step - 5
            return floor + (8.0 - floor) * (1 + trained) ** -fall

        return loss

    trained = Trained(sign=-1.0)
    for trial in range(10):
        steps = 128 if trial < 2 else 4 * 2 ** (trial % 4)
        trained.train(trial, falling(2.0 + 0.1 * trial, 0.35 + 0.03 * trial), steps)
    coming, forecast = 0.0, 0.0
    for trial, fall in enumerate((0.3, 0.4, 0.5, 0.6), 20):
        metric = falling(2.3, fall)
        trained.train(trial, metric, 64)
        coming += metric(64) - metric(256)
        forecast += metric(64) - trained.forecast(trial, 256)
    assert 0.6 * coming < forecast < 1.1 * coming, "an eighth, where early looks count as long"


def test_a_curve_that_levels_off_is_forecast_to() -> None:
    trained = Trained()
    trained.train(9, saturating(0.7, 12), 24)
    assert trained.forecast(9, 192) == pytest.approx(0.7, abs=0.1)


def test_forecasts_are_vague_until_a_curve_bends() -> None:
    trained = Trained()
    trained.train(0, saturating(0.8, 60), 6)
    trained.train(1, saturating(0.8, 60), 192)
    early, late = trained.belief(0, 500), trained.belief(1, 500)
    assert early.deviation > 2 * late.deviation


def test_noise_is_not_taken_for_a_rise() -> None:
    random = Random(1)
    trained = Trained()
    for trial in range(8):
        trained.train(trial, lambda step: 0.5 + random.gauss(0, 0.05), 48)
    rises = [trained.belief(t, 400).mean - trained.curves.seen[t].level for t in range(8)]
    assert sum(rises) / len(rises) < 0.06


def test_a_metric_that_is_not_finite_has_no_forecast() -> None:
    trained = Trained()
    trained.train(0, lambda step: math.nan if step >= 4 else 0.5, 4)
    assert trained.curves.seen[0].level == NEVER
    assert trained.curves.believe({0: 100.0, 1: 100.0}) == {}, "diverged, and never heard of"


def test_steps_that_are_trained_again_after_a_fault_take_no_forecast_away() -> None:
    """The look at the first of them found no report beyond the last look, as in a trial that has diverged."""
    trained = Trained()
    trained.train(0, saturating(0.7, 12), 70)
    before = trained.belief(0, 192)
    trained.trials[0].step = 40
    trained.train(0, saturating(0.7, 12), 60)
    assert trained.belief(0, 192) == before


@pytest.mark.parametrize("size", [1e300, 1e155, 1e-200])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_of_any_size_have_a_finite_forecast(size: float, sign: float) -> None:
    """A perplexity that diverges, a loss that vanishes: squares of such numbers are none."""
    trained = Trained(sign=sign)
    for trial in range(3):
        trained.train(trial, lambda step, trial=trial: size * (1 + 1 / (step + trial)), 12)
    trained.train(3, lambda step: 1.0 if step < 6 else size, 12)
    for trial in range(4):
        belief = trained.belief(trial, 100)
        assert math.isfinite(belief.mean + belief.deviation)


def test_losses_of_any_size_are_forecast_as_surely() -> None:
    """Below 1e-8 the deviation stayed at 1e-9, whatever the curves were."""
    beliefs = []
    for size in (1.0, 2.0**-50):
        trained = Trained(sign=-1.0)
        for trial in range(3):
            trained.train(
                trial, lambda step, n=trial, of=size: of * 3 * step ** -(0.2 + 0.1 * n), 64
            )
        beliefs.append(trained.belief(2, 128))
    assert beliefs[1].deviation * 2.0**50 == pytest.approx(beliefs[0].deviation, rel=0.01)


@pytest.mark.parametrize(
    ("scores", "ceiling"),
    [([0.1, 0.7], 1.0), ([-3.0, -0.2], 0.0), ([10.0, 50.0, 90.0], 130.0)],
)
def test_a_ceiling_is_guessed(scores: list[float], ceiling: float) -> None:
    trained = Trained()
    for trial, score in enumerate(scores):
        trained.train(trial, lambda step, score=score: score, 2)
    assert trained.curves.ceiling == pytest.approx(ceiling, rel=0.35)
    assert trained.curves.ceiling >= max(scores)


def test_scores_beyond_a_ceiling_move_it_and_every_curve_is_fitted_again() -> None:
    trained = Trained()
    trained.train(0, lambda step: 0.2 * step, 3)
    before = trained.curves.range
    trained.train(1, lambda step: 5.0 * step, 12)
    assert trained.curves.ceiling > 60.0
    assert trained.curves.range > 10 * before
    assert trained.forecast(1, 24) > trained.forecast(0, 24)


def test_expected_excess_of_a_normal() -> None:
    random = Random(5)
    drawn = [max(0.0, random.gauss(0.3, 0.5) - 0.6) for _ in range(200_000)]
    assert expected_excess(0.3, 0.5, 0.6) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert expected_excess(0.3, 0.0, 0.1) == pytest.approx(0.2)
    assert expected_excess(0.0, 0.01, 1.0) == 0.0


def test_newcomers_promise_what_the_latest_trials_promise_now() -> None:
    """Configurations that looked well at first and were refuted since promise little."""
    trained = Trained()
    assert trained.curves.newcomers(64.0) == []
    for trial in range(6):
        trained.train(trial, saturating(0.8, 40), 4)
    first = trained.curves.newcomers(64.0)
    for trial in range(6):
        trained.train(trial, saturating(0.1, 3), 24)
    assert sum(now.mean for now in trained.curves.newcomers(64.0)) < sum(one.mean for one in first)


def test_the_last_bits_of_numpy_change_no_belief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits differ between processors; a search replayed on another machine must decide the same."""

    def beliefs() -> list[Belief]:
        trained = Trained()
        for trial in range(6):
            trained.train(trial, power(0.1 + 0.1 * trial), 9 + trial)
        return [trained.belief(trial, 64) for trial in range(6)]

    here = beliefs()
    exp, log = foresight_curves.np.exp, foresight_curves.np.log
    monkeypatch.setattr(foresight_curves.np, "exp", lambda x: np.nextafter(exp(x), 2.0))
    monkeypatch.setattr(foresight_curves.np, "log", lambda x: np.nextafter(log(x), 0.0))
    assert beliefs() == here

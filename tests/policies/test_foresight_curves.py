"""Forecasts of ``foresight``, held against curves whose end is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from gpusched.core.policy import TrialView
from gpusched.core.trial import NEVER, Trial
from gpusched.policies.foresight_curves import Curves, Scale, expected_excess

Score = Callable[[int], float]


class Trained:
    """Trials that train by functions of the step."""

    def __init__(self, ceiling: float | None = 1.0, sign: float = 1.0) -> None:
        self.curves, self.ceiling, self.sign = Curves(), ceiling, sign
        self.trials: dict[int, TrialView] = {}

    def train(self, trial_id: int, metric: Score, steps: int) -> None:
        trial = Trial(trial_id, {})
        self.trials[trial_id] = view = TrialView(trial)
        for step in range(1, steps + 1):
            value = metric(step)
            trial.step = step
            trial.score = NEVER if math.isnan(value) else value * self.sign
            trial.curve.add(step, value)
            self.curves.look(view, self.sign, self.ceiling)
            if step in (1, 4, 16, 64):
                self.curves.rescale(self.trials)
                self.curves.refit()
        self.curves.rescale(self.trials)
        self.curves.refit()

    def forecast(self, trial: int, step: int) -> float:
        """The metric at a later step."""
        seen = self.curves.seen[trial]
        return self.curves.scale.score(self.curves.forecast(seen, step)[0]) * self.sign


def power(fall: float) -> Score:
    return lambda step: 1.0 - 0.6 * step**-fall


def test_power_laws_are_straight_lines() -> None:
    trained = Trained()
    for trial in range(6):
        trained.train(trial, power(0.1 + 0.05 * trial), 128)
    trained.train(9, power(0.3), 16)
    assert trained.forecast(9, 128) == pytest.approx(power(0.3)(128), abs=0.03)
    assert trained.curves.doubt < 0.5


def test_a_search_whose_curves_level_off_forecasts_that_they_do() -> None:
    def levelling(end: float) -> Score:
        return lambda step: end * (1 - math.exp(-step / 12))

    trained = Trained()
    for trial in range(8):
        trained.train(trial, levelling(0.4 + 0.06 * trial), 192)
    trained.train(9, levelling(0.7), 24)
    assert trained.forecast(9, 192) == pytest.approx(0.7, abs=0.05)


def test_a_surprise_lasts_where_surprises_have_lasted() -> None:
    """Most level off; one goes on rising, and more is expected of it than of the others."""
    trained = Trained()
    for trial in range(6):
        trained.train(trial, lambda step: 0.5 * (1 - math.exp(-step / 6)), 48)
    for trial in (6, 7):
        trained.train(trial, lambda step: 0.9 * (1 - math.exp(-step / 120)), 48)
    assert trained.curves.lasting > 0.1
    seen = trained.curves.seen[7]
    assert seen.surprise > 0
    lasting, trained.curves.lasting = trained.curves.lasting, 0.0
    without = trained.forecast(7, 192)
    trained.curves.lasting = lasting
    assert trained.forecast(7, 192) > without


def test_noise_is_drawn_towards_the_others() -> None:
    random = Random(1)
    trained = Trained()
    for trial in range(20):
        trained.train(trial, lambda step: 0.5 + random.gauss(0, 0.05), 3)
    levels = [seen.level for seen in trained.curves.seen.values()]
    fresh = Trained()
    fresh.train(0, lambda step: 0.62, 3)
    assert max(levels[10:]) < fresh.curves.seen[0].level


def test_a_metric_that_is_not_finite_has_no_level() -> None:
    trained = Trained()
    trained.train(0, lambda step: math.nan if step >= 4 else 0.5, 4)
    assert trained.curves.seen[0].level == NEVER
    assert trained.curves.believe(0, 100.0) is None
    assert trained.curves.believe(1, 100.0) is None, "never heard of"


def test_reports_that_skip_steps_are_looked_at() -> None:
    trained = Trained()
    trial = Trial(0, {})
    for step in (5, 10, 15, 20, 25):
        trial.step, trial.score = step, power(0.3)(step)
        trial.curve.add(step, trial.score)
        trained.curves.look(TrialView(trial), 1.0, 1.0)
    assert trained.curves.seen[0].step == 25
    assert trained.curves.seen[0].gain > 0


@pytest.mark.parametrize(
    ("scores", "ceiling"),
    [([0.1, 0.7], 1.0), ([-3.0, -0.2], 0.0), ([10.0, 50.0, 90.0], 130.0)],
)
def test_a_ceiling_is_guessed(scores: list[float], ceiling: float) -> None:
    scale = Scale(None)
    for n, score in enumerate(scores):
        scale.saw(score, is_first=n < 2)
        scale.fit()
    assert scale.ceiling == pytest.approx(ceiling, rel=0.35)
    assert scale.ceiling >= max(scores)


def test_scores_beyond_a_ceiling_move_it_and_levels_follow() -> None:
    trained = Trained(ceiling=None)
    trained.train(0, lambda step: 0.2 * step, 3)
    before = trained.curves.seen[0].level
    trained.train(1, lambda step: 5.0 * step, 12)
    assert trained.curves.scale.ceiling > 60.0
    assert trained.curves.seen[0].level != before
    assert trained.curves.seen[1].level > trained.curves.seen[0].level


def test_a_loss_is_forecast_to_fall() -> None:
    trained = Trained(ceiling=None, sign=-1.0)
    for trial in range(5):
        trained.train(trial, lambda step, t=trial: 3.0 * step ** -(0.2 + 0.02 * t), 64)
    trained.train(9, lambda step: 3.0 * step**-0.25, 16)
    assert trained.forecast(9, 64) == pytest.approx(3.0 * 64**-0.25, abs=0.15)


def test_levels_and_scores_are_inverse() -> None:
    scale = Scale(1.0)
    for score in (0.1, 0.5, 0.93):
        assert scale.score(scale.level(score)) == pytest.approx(score)


def test_expected_excess_of_a_normal() -> None:
    random = Random(5)
    drawn = [max(0.0, random.gauss(0.3, 0.5) - 0.6) for _ in range(200_000)]
    assert expected_excess(0.3, 0.5, 0.6) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert expected_excess(0.3, 0.0, 0.1) == pytest.approx(0.2)
    assert expected_excess(0.0, 0.01, 1.0) == 0.0


def test_newcomers_promise_more_where_the_best_differ_more() -> None:
    wide, narrow = Trained(), Trained()
    for trial in range(12):
        wide.train(trial, lambda step, t=trial: 0.3 + 0.05 * t, 4)
        narrow.train(trial, lambda step, t=trial: 0.3 + 0.005 * t, 4)
    promises = [
        t.curves.newcomers(64.0, t.curves.scale.level(0.85), Random(0)) for t in (wide, narrow)
    ]
    assert None not in promises
    assert (promises[0] or 0.0) > 10 * (promises[1] or 0.0)
    assert Trained().curves.newcomers(64.0, 0.0, Random(0)) is None

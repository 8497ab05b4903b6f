"""Curves of one search, continued: as they went, as unsure as they are, and the same for the same key."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpusched.sim.continuing import Curves, Future, Resampled, Seen


def seen(trial: int, scores: list[float], **more) -> Seen:
    steps = np.arange(1.0, len(scores) + 1)
    return Seen(trial, steps, np.array(scores), 1.0 + trial, **more)


def rising(end: float, steps: int) -> list[float]:
    return [end * (1 - math.exp(-step / 20)) for step in range(1, steps + 1)]


def family(steps: int = 40, count: int = 8) -> Curves:
    return Curves([seen(n, rising(0.5 + 0.05 * n, steps if n % 2 else 8)) for n in range(count)])


def test_steps_that_were_seen_are_as_they_were():
    curves = family()
    curve = Future(curves, [1, 1]).curve(5)
    assert [curve.metric(step) for step in (1, 8, 40)] == [rising(0.75, 40)[n] for n in (0, 7, 39)]
    assert curve.step_time_s(3) == 6.0


def test_a_curve_goes_on_as_those_before_it_went():
    curves = family()
    ends = [Future(curves, [1, n]).curve(4).metric(40) for n in range(40)]
    low, high = np.quantile(ends, [0.05, 0.95])
    assert low < rising(0.7, 40)[-1] < high
    assert high - low < 0.4


def test_the_same_key_gives_the_same_curve_whichever_was_asked_first():
    curves = family()
    once, again = Future(curves, [1, 7]), Future(curves, [1, 7])
    again.curve(99).metric(200)
    assert once.curve(2).metric(100) == again.curve(2).metric(100)
    assert once.curve(2).metric(100) != Future(curves, [1, 8]).curve(2).metric(100)


def test_new_configurations_lie_among_those_seen_and_beyond_the_best_at_times():
    curves = family()
    ends = [Future(curves, [1, n]).curve(100).metric(8) for n in range(200)]
    best = max(rising(0.85, 8))
    assert 0.0 < sum(end > best for end in ends) / 200 < 0.25
    assert np.median(ends) == pytest.approx(rising(0.675, 8)[-1], abs=0.05)


def test_a_guess_of_the_best_possible_score_bounds_nothing():
    """Scores a little below 0 may have no bound at all; early curves come to several times their best."""
    curves = Curves([seen(n, [-0.01 + 0.01 * step for step in range(20 + n)]) for n in range(5)])
    ends = [Future(curves, [1, n]).curve(4).metric(600) for n in range(40)]
    assert max(ends) > curves.model.ceiling


def test_copies_stay_copies():
    """Configurations that are all alike: there is no distance to move a newcomer by."""
    curves = Curves([seen(n, rising(0.7, 12)) for n in range(6)])
    assert Future(curves, [1, 1]).curve(50).metric(12) == pytest.approx(rising(0.7, 12)[-1])


def test_failures_and_divergence_are_drawn_like_the_rest():
    curves = Curves([*(seen(n, rising(0.5, 12)) for n in range(3)), seen(3, [], ending="failed")])
    drawn = [Future(curves, [1, n]).curve(50) for n in range(100)]
    assert 10 < sum(curve.ending == "failed" for curve in drawn) < 45
    diverged = Curves([seen(0, [0.1, 0.2, math.nan]), *(seen(n, rising(0.5, 12)) for n in (1, 2))])
    assert math.isnan(Future(diverged, [1, 1]).curve(0).metric(9))
    # One that has diverged is not the best possible, neither where it has nor as the origin of a newcomer.
    assert math.isnan(Future(diverged, [1, 1]).curve(0).metric(3))
    newcomers = [Future(diverged, [1, n]).curve(50).metric(3) for n in range(30)]
    assert any(map(math.isnan, newcomers))
    assert not any(score > 0.9 for score in newcomers)


def test_a_metric_to_minimise_is_turned_back():
    curves = Curves([seen(n, [-1 / step - 0.1 * n for step in range(1, 30)]) for n in range(5)])
    workload = Resampled("loss", "min", Future(curves, [1, 1]))
    assert workload.curve(2, {}, 0).metric(10) == pytest.approx(0.3)
    assert 0.0 < workload.curve(2, {}, 0).metric(60) < 0.3

"""``earlyterm``: the predictive termination criterion as HyperDrive (Middleware'17) states it in section 5.3."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.policies import base
from gpusched.policies.extrapolation import Outlook
from tests.policies.hand import Hand, Oracle

SMALL: dict[str, Any] = {"b": 3, "R": 9, "metric_min": 0.0, "metric_max": 1.0}


@pytest.fixture(autouse=True)
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    made = Oracle()
    monkeypatch.setattr("gpusched.policies.earlyterm.extrapolate", made)
    return made


def test_every_bth_step_the_curve_is_extrapolated_to_R_against_the_best_so_far(
    oracle: Oracle,
) -> None:
    """5.3: p_val = P(y_m >= y_hat | y_1:n), m "the max epoch", y_hat "the global best model performance seen"."""
    hand = Hand("earlyterm", SMALL, atoms=2)
    hand.train(0, [0.5, 0.8])
    hand.train(1, [0.1, 0.2])
    assert oracle.asked == []
    hand.report(1, 0.3)
    (asked,) = oracle.asked
    assert (asked.seed, asked.curve) == ((1, 3), (0.1, 0.2, 0.3))
    assert (asked.horizon, asked.target) == (9, 0.8)
    hand.train(1, [0.4, 0.5, 0.6])
    assert oracle.asked[-1].curve == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def test_a_trial_without_a_chance_is_stopped(oracle: Oracle) -> None:
    """5.3: "if p_val < delta then the job is immediately terminated"."""
    hand = Hand("earlyterm", SMALL, atoms=1)
    oracle.says = Outlook(0.1, 5.0, 0.049)
    hand.train(0, [0.1] * 3)
    assert hand.where(0) == "stopped"
    assert "a probability of 0.049" in hand.said
    assert hand.live == [1]


def test_losses_and_bounds_are_turned_to_a_scale(oracle: Oracle) -> None:
    hand = Hand("earlyterm", {**SMALL, "metric_max": 4.0}, atoms=1, mode="min")
    hand.train(0, [4.0, 3.0, 1.0])
    assert oracle.asked[0].curve == (0.0, 0.25, 0.75)
    assert oracle.asked[0].target == 0.75


def test_a_curve_of_very_many_reports_is_thinned(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each judgement read all reports again, of which a script may make 100,000."""
    monkeypatch.setattr(base, "MOST", 4)
    hand = Hand("earlyterm", SMALL, atoms=1)
    hand.train(0, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert oracle.asked[0].curve == (0.1, 0.2, 0.3)
    assert oracle.asked[1].curve == (0.2, 0.4, 0.6)
    assert oracle.asked[1].horizon == 3 + 2, "the three steps to 9 are two more of two steps each"


def test_non_finite_metrics_never_reach_the_predictor(oracle: Oracle) -> None:
    hand = Hand("earlyterm", SMALL, atoms=2)
    hand.train(0, [0.1, None, 0.3])
    assert oracle.asked[0].curve == (0.1, 0.3)
    hand.train(1, [0.1, 0.2, None])
    assert len(oracle.asked) == 1

"""``bandit``: TuPAQ's action elimination as HyperDrive (Middleware'17) states it in sections 5.3 and 6.3."""

from __future__ import annotations

from typing import Any

from tests.policies.hand import Hand

EVERY_STEP: dict[str, Any] = {"b": 1, "eps": 0.5, "R": 100}


def judged(best: float, other: float | None, options: dict[str, Any], **rules: Any) -> str:
    """Return where a trial is after its first judgement, when another has ``best``."""
    hand = Hand("bandit", {**EVERY_STEP, **options}, atoms=2, configurations=2, **rules)
    hand.report(0, best)
    hand.report(1, other)
    return hand.where(1)


def test_a_trial_goes_on_if_its_best_times_one_plus_eps_is_above_the_best_of_all() -> None:
    """5.3: jobBest * (1 + eps) > globalBest; 0.6 * 1.5 = 0.9 is not above 0.9."""
    assert judged(0.9, 0.61, {}) == "running"
    assert judged(0.9, 0.6, {}) == "stopped"
    assert judged(0.9, None, {}) == "stopped"
    assert judged(0.9, 0.6, {"eps": 0.6}) == "running"


def test_the_best_of_a_trial_counts_not_its_latest() -> None:
    """5.3: "the best model performance per job (jobBest)"."""
    hand = Hand("bandit", {**EVERY_STEP, "b": 2}, atoms=2)
    hand.train(0, [0.9, 0.9])
    hand.train(1, [0.8, 0.1])
    assert hand.where(1) == "running"


def test_only_every_bth_step_is_judged() -> None:
    """5.3: "checks to see if the current iteration is on an evaluation boundary (b)"."""
    hand = Hand("bandit", {"b": 3, "R": 100}, atoms=2)
    hand.train(0, [0.9] * 3)
    hand.train(1, [0.1, 0.1])
    assert hand.where(1) == "running"
    hand.report(1, 0.1)
    assert hand.where(1) == "stopped"
    assert "its best is 0.1000, the best of all 0.9000" in hand.said


def test_losses_are_compared_the_other_way_round() -> None:
    assert judged(1.0, 1.49, {}, mode="min") == "running"
    assert judged(1.0, 1.5, {}, mode="min") == "stopped"


def test_negative_metrics_are_put_on_the_scale_seen() -> None:
    """As printed, the rule would keep the worse the trial is: -400 * 1.5 = -600, but -10 * 1.5 = -15 > -20."""
    hand = Hand("bandit", EVERY_STEP, atoms=3, configurations=3)
    hand.report(0, -100.0)
    hand.report(1, -20.0)
    hand.report(2, -90.0)  # 0.125 of the way from -100 to -20
    assert hand.where(2) == "stopped"
    hand.report(0, -40.0)  # 0.75 of the way: 1.125 > 1
    assert hand.where(0) == "running"


def test_the_best_itself_goes_on_with_a_metric_of_zero() -> None:
    """0 * 1.5 > 0 is false; the rule as printed would stop every trial."""
    hand = Hand("bandit", EVERY_STEP, atoms=2)
    hand.report(0, 0.0)
    hand.report(1, 0.0)
    assert hand.live == [0, 1]

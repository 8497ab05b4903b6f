"""HyperSched: how many atoms a trial gets, and when it grows (Algorithm 3, lines 21 to 25)."""

from __future__ import annotations

from typing import Any

from tests.policies.hand import Hand
from tests.policies.test_hypersched import PLAIN, policy


def test_uniform_allocation_gives_the_left_over_to_the_best() -> None:
    """Section 5: "one atom to each trial in the sorted list in a round-robin fashion"; 5 atoms, 2 trials: 3 and 2."""
    options = {**PLAIN, "resize": True, "cooldown": 0, "R": None}
    hand = Hand("hypersched", options, atoms=5, configurations=2, deadline_s=1000.0)
    hand.report(0, 0.5, took_s=1.0, at=1.0)
    assert hand.launched(0) == [1, 3]  # the only one that has a metric: first of the live ones
    hand.report(1, 0.5, took_s=1.0, at=2.0)
    assert hand.launched(1) == [1, 2]
    assert policy(hand)._share(hand.state, hand.trial(0)) == 3


def test_top_job_allocation_gives_the_left_over_to_one() -> None:
    """Section 4.3: "a more exploitative policy such as one that allocates all resources to the top trial"."""
    options = {**PLAIN, "resize": True, "cooldown": 0, "R": None, "allocation": "top_job"}
    hand = Hand("hypersched", options, atoms=5, configurations=2)
    hand.report(0, 0.5, at=1.0)
    assert hand.launched(0) == [1, 4]
    hand.report(1, 0.4, at=2.0)
    assert hand.launched(1) == [1]


def test_growth_waits_for_the_cooldown() -> None:
    """Line 24: its_since_resize > COOLDOWN."""
    options = {**PLAIN, "resize": True, "cooldown": 3, "R": None}
    hand = Hand("hypersched", options, atoms=4, configurations=1)
    hand.train(0, [0.5] * 3)
    assert hand.atoms(0) == 1
    hand.report(0, 0.5)
    assert hand.launched(0) == [1, 4]


def test_growth_takes_free_atoms_only() -> None:
    options = {**PLAIN, "resize": True, "cooldown": 0, "R": None, "eta": 1.5}
    hand = Hand("hypersched", options, atoms=4, configurations=2)
    hand.report(0, 0.5, at=1.0)
    assert hand.atoms(0) == 2
    hand.exit(1, "failed")
    hand.report(0, 0.5, at=2.0)
    assert hand.atoms(0) == 4


def four_trials() -> Hand:
    """Four atoms, one trial each, past its cooldown."""
    options = {**PLAIN, "resize": True, "cooldown": 2, "R": None, "r": 50}
    hand = Hand("hypersched", options, atoms=4, configurations=4)
    for _ in range(4):
        for trial in range(4):
            hand.report(trial, 0.9 - trial / 10)
    return hand


def one_that_is_left() -> Hand:
    """Trial 0; the atom of trial 1 is free, those of 2 and 3 drain."""
    hand = four_trials()
    hand.exit(1, "failed")
    hand.releases = False
    hand.exit(2, "failed")
    hand.exit(3, "failed")
    return hand


def test_atoms_that_come_free_one_after_another_are_taken_in_one_resize() -> None:
    """Ours: trial 1's atom is free, those of 2 and 3 drain or are about to: one report is let pass, then 1 -> 4."""
    hand = one_that_is_left()
    assert hand.state.atoms_free == 1
    hand.report(0, 0.9)
    assert hand.launched(0) == [1]
    hand.release()
    hand.releases = True
    hand.report(0, 0.9)
    assert hand.launched(0) == [1, 4]


def test_atoms_that_do_not_come_are_waited_for_one_report_long() -> None:
    hand = one_that_is_left()
    hand.report(0, 0.9)
    assert hand.launched(0) == [1]
    hand.releases = True
    hand.report(0, 0.9)
    assert hand.launched(0) == [1, 2]


def growth_at(left_s: float, overhead_s: float, options: dict[str, Any], **rules: Any) -> bool:
    """Whether a trial on 1 atom grows to 4 with so much time left, launches costing ``overhead_s``."""
    merged = {**PLAIN, "resize": True, "cooldown": 0, "R": None, **options}
    hand = Hand("hypersched", merged, atoms=4, configurations=1, deadline_s=1000.0, **rules)
    # The first report comes the overhead and one step after the launch.
    hand.report(0, 0.5, at=1000.0 - left_s, took_s=1000.0 - left_s - overhead_s)
    return hand.launched(0) == [1, 4]


SHORT = {"last_step_guard": False}


def test_growth_must_pay_within_the_time_left() -> None:
    """Line 23: (Tn - To) * s(4) > Tn * s(1); linear, To = 60: 80 s pay the same, more pays."""
    assert growth_at(81.0, 60.0, SHORT)
    assert not growth_at(80.0, 60.0, SHORT)


def test_without_overhead_awareness_To_counts_as_nothing() -> None:
    """Ablation of figure 9."""
    assert growth_at(61.0, 60.0, {**SHORT, "overhead_aware": False})


def test_growth_looks_at_the_scaling() -> None:
    """Line 22: with s(a) = sqrt(a) twice the overhead must be left; with no scaling nothing pays."""
    assert growth_at(121.0, 60.0, SHORT, scaling="sqrt")
    assert not growth_at(120.0, 60.0, SHORT, scaling="sqrt")
    assert not growth_at(900.0, 60.0, SHORT, scaling="none")


def test_assuming_linear_ignores_the_scaling() -> None:
    """Ablation of figure 9."""
    assert growth_at(900.0, 60.0, {**SHORT, "assume_linear": True}, scaling="none")


def test_without_resize_a_trial_keeps_one_atom() -> None:
    """Ablation of figure 8."""
    assert not growth_at(900.0, 0.0, {"resize": False})


def test_shares_are_rounded_down_to_allowed_sizes() -> None:
    options = {**PLAIN, "resize": True, "cooldown": 0, "R": None}
    hand = Hand("hypersched", options, atoms=7, configurations=1, sizes=(1, 2, 4))
    hand.report(0, 0.5, at=1.0)
    assert hand.launched(0) == [1, 4]
    capped = Hand("hypersched", options, atoms=7, configurations=1, max_atoms=3)
    capped.report(0, 0.5, at=1.0)
    assert capped.launched(0) == [1, 3]

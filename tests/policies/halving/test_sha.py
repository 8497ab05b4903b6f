"""``sha``: synchronous halving (HyperSched, SoCC'19, section 3.2), and what keeps it from waiting for ever."""

from __future__ import annotations

from typing import Any

from gpusched.policies.halving.sha import Sha, brackets
from tests.policies.hand import Hand

NINE: dict[str, Any] = {"r": 1, "R": 9, "eta": 3.0}


def plan(hand: Hand) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert isinstance(hand.policy, Sha)
    found = next(hand.policy._shapes())
    return found.sizes, found.milestones


def round_of(hand: Hand, metrics: dict[int, float | None], steps: int = 1) -> None:
    """Each of these trials runs the steps of its halving as soon as it has an atom."""
    waiting = dict(metrics)
    while waiting:
        trial = next(n for n in waiting if n in hand.state.live)
        metric = waiting.pop(trial)
        for _ in range(steps):
            hand.report(trial, metric)


# ---------------------------------------------------------------- the rule


def test_the_example_of_section_3_2() -> None:
    """ "81 trials x 1 .., 27 x 3 .., 9 x 9, 3 x 27, and finally, 1 trial x 81": reduction factor 3."""
    hand = Hand("sha", {"r": 1, "R": 81, "eta": 3.0})
    assert plan(hand) == ((81, 27, 9, 3, 1), (1, 3, 9, 27, 81))


def test_milestones_are_those_of_asha_and_then_R() -> None:
    assert plan(Hand("sha", {"r": 2, "R": 20, "eta": 4.0})) == ((16, 4, 1), (2, 8, 20))


def test_a_halving_waits_until_all_are_in() -> None:
    """ "All jobs are allocated a limited amount of resources first, then the top trials are taken"."""
    hand = Hand("sha", NINE, atoms=1)
    for trial in range(8):
        hand.report(trial, 0.1 * trial)
        assert hand.where(trial) == "paused"
    assert hand.live == [8]
    hand.report(8, 0.05)
    assert hand.live == [7]
    assert sorted([*hand.live, *hand.paused]) == [5, 6, 7]
    assert hand.where(0) == "stopped"
    assert "out: 9th of 9 at 1 steps" in hand.why(0)


def test_the_best_trials_go_on_in_order_and_the_last_one_to_R() -> None:
    hand = Hand("sha", NINE, atoms=1, configurations=9)
    round_of(hand, {n: 0.1 * n for n in range(9)})
    round_of(hand, {8: 0.8, 7: 0.9, 6: 0.7}, steps=2)
    assert hand.live == [7]
    hand.train(7, [0.9] * 6)
    assert hand.where(7) == "completed"
    assert hand.trial(7).step == 9
    assert hand.finished == "nothing left to run"


def test_the_last_to_arrive_goes_on_without_a_pause_if_it_is_among_the_best() -> None:
    hand = Hand("sha", NINE, atoms=1)
    round_of(hand, dict.fromkeys(range(8), 0.1))
    hand.report(8, 0.9)
    assert hand.where(8) == "running"
    assert hand.launched(8) == [1]


# ---------------------------------------------------------------- who does not come


def test_failed_trials_do_not_block() -> None:
    hand = Hand("sha", NINE, atoms=2)
    hand.exit(0, "failed")
    hand.exit(1, "failed")
    round_of(hand, {n: 0.1 * n for n in range(2, 9)})
    assert sorted([*hand.live, *hand.paused]) == [6, 7, 8]


def test_trials_without_a_finite_metric_do_not_go_on() -> None:
    hand = Hand("sha", NINE, atoms=1, max_failures=99)
    round_of(hand, dict.fromkeys(range(8)))
    hand.report(8, -7.0)
    assert hand.live == [8]
    assert hand.paused == []


def test_who_is_held_by_a_person_does_not_block() -> None:
    hand = Hand("sha", NINE, atoms=1)
    hand.user("pause", 0)
    hand.exit(0, "yielded", saved_step=0)
    round_of(hand, {n: 0.1 * n for n in range(1, 9)})
    assert hand.live == [8]
    assert hand.where(0) == "paused"


def test_who_comes_back_in_time_takes_part() -> None:
    hand = Hand("sha", NINE, atoms=2)
    hand.user("pause", 0)
    hand.exit(0, "yielded", saved_step=0)
    round_of(hand, {n: 0.1 * n for n in range(1, 8)})
    hand.user("unpause", 0)
    assert hand.live == [0, 8]
    hand.report(0, 0.9)
    hand.report(8, 0.8)
    assert sorted([*hand.live, *hand.paused]) == [0, 7, 8]


def test_who_comes_back_too_late_is_out() -> None:
    hand = Hand("sha", {"r": 2, "R": 4, "eta": 2.0}, atoms=2)
    hand.user("pause", 0)
    hand.report(0, 0.9)
    hand.train(1, [0.1, 0.1])
    assert hand.where(1) == "running"
    hand.user("unpause", 0)
    hand.train(0, [0.9, 0.9])
    hand.report(0, 0.9)
    assert hand.where(0) == "stopped"
    assert "continued without it" in hand.said


def test_a_winner_that_a_person_lets_go_on_is_not_launched_for_the_same_halving_again() -> None:
    hand = Hand("sha", {"r": 1, "R": 8, "eta": 2.0}, atoms=1)
    round_of(hand, {n: 0.9 - 0.1 * n for n in range(8)})
    assert hand.live == [0]
    hand.user("pause", 1)
    hand.user("unpause", 1)
    hand.report(0, 0.9)
    assert hand.live == [1]
    hand.report(1, 0.8)
    assert hand.live == [2]
    hand.report(2, 0.7)
    hand.report(3, 0.6)
    assert [hand.trial(n).step for n in range(4)] == [2, 2, 2, 2]
    assert sorted([*hand.live, *hand.paused]) == [0, 1]


# ---------------------------------------------------------------- hyperband (Li et al., JMLR 2018, Algorithm 1)


def test_table_1_of_the_hyperband_paper() -> None:
    """R = 81, eta = 3: n_i and r_i for s = 4 to 0."""
    assert [(plan.sizes, plan.milestones) for plan in brackets(1, 81, 3.0)] == [
        ((81, 27, 9, 3, 1), (1, 3, 9, 27, 81)),
        ((34, 11, 3, 1), (3, 9, 27, 81)),
        ((15, 5, 1), (9, 27, 81)),
        ((8, 2), (27, 81)),
        ((5,), (81,)),
    ]


def test_r_limits_the_most_aggressive_bracket() -> None:
    """s_max = floor(log_eta(R / r))."""
    assert [plan.name for plan in brackets(9, 81, 3.0)] == [
        "bracket s=2",
        "bracket s=1",
        "bracket s=0",
    ]
    assert next(plan.milestones for plan in brackets(9, 81, 3.0)) == (9, 27, 81)
    assert next(plan.milestones for plan in brackets(5, 81, 3.0)) == (9, 27, 81)

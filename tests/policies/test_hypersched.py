"""``hypersched``: HyperSched (SoCC'19), sections 4.2 and 4.3, Algorithms 1 and 3."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched import policies
from gpusched.core.state import NOTHING_LEFT, TOO_LATE
from gpusched.dashboard import view as views
from tests.policies.contract import BOUNDS
from tests.policies.hand import Hand

#: The cooldown keeps trials from growing.
PLAIN: dict[str, Any] = {"r": 1, "R": 100, "eta": 4.0, "cooldown": 10_000}


# ---------------------------------------------------------------- rungs: lines 14 to 20


def test_an_early_bird_is_paused_later_at_any_report() -> None:
    """Line 17 says >=: "if at any time the trial score at the rung is not in the top 1/eta .. it will be paused"."""
    hand = Hand("hypersched", PLAIN, atoms=2)
    hand.train(0, [0.1, 0.2])  # at rung 1 with 0.1; alone there
    hand.report(1, 0.9)
    assert hand.where(0) == "running"
    hand.report(0, 0.95)  # step 3 is no rung, and its latest metric is the best: rung 1 counts
    assert hand.where(0) == "paused"
    assert "2nd of 2 at rung 1" in hand.said


def test_the_best_ceil_n_over_eta_are_kept() -> None:
    """Line 18: 1 of 4, 2 of 5."""
    hand = Hand("hypersched", PLAIN, atoms=5)
    for trial, metric in enumerate([0.5, 0.4, 0.3, 0.2]):
        hand.report(trial, metric)
    assert [hand.where(n) for n in range(4)] == ["running", "paused", "paused", "paused"]
    hand.report(4, 0.45)
    assert hand.where(4) == "running"
    hand.report(5, 0.44)
    assert hand.where(5) == "paused"


@pytest.mark.parametrize(("first", "state"), [(0.5, "paused"), (0.1, "running")])
def test_trials_at_chance_keep_no_atoms_once_one_is_better(first: float, state: str) -> None:
    """Line 19 keeps ties: of eight trials the seven that had collapsed to one accuracy kept seven atoms for good."""
    hand = Hand("hypersched", PLAIN, atoms=8)
    for trial, metric in enumerate([first, *[0.1] * 7]):
        hand.report(trial, metric)
    assert [hand.where(n) for n in range(2, 8)] == [state] * 6
    assert ("cut-off 0.1000 (others had it before)" in hand.said) == (state == "paused")


# ---------------------------------------------------------------- who is next: Algorithm 1, lines 18 to 25


def test_highest_rung_first_then_a_new_configuration() -> None:
    hand = Hand("hypersched", {**PLAIN, "eta": 2.0}, atoms=2, deadline_s=1e6)
    hand.report(0, 0.9)
    hand.report(1, 0.8)  # 2nd of 2: pauses; floor(2/2) = 1 is trial 0, which runs: a new one enters
    assert (hand.where(1), hand.live) == ("paused", [0, 2])
    hand.report(2, 0.7)  # 3rd of 3: pauses; floor(3/2) = 1
    assert hand.live == [0, 3]
    hand.report(3, 0.75)  # 3rd of 4: pauses; floor(4/2) = 2: trial 1 resumes
    assert hand.live == [0, 1]
    assert "promoted from rung 1" in hand.said


def test_a_trial_waits_in_the_rung_it_was_last_recorded_in() -> None:
    """Section 4, rule 3: cut at rung 2, trial 0 is not promoted for being the best of rung 1."""
    hand = Hand("hypersched", {**PLAIN, "eta": 2.0}, atoms=2, deadline_s=1e6)
    hand.report(0, 0.9)
    hand.report(1, 0.9)
    hand.report(1, 0.6)
    hand.report(0, 0.5)
    assert hand.policy.ladder.rungs[0].rank(0) == 0
    assert hand.where(0) == "paused"
    assert hand.live == [1, 2]


def test_nobody_is_promoted_who_would_be_paused_again_for_a_lower_rung() -> None:
    hand = Hand("hypersched", {**PLAIN, "eta": 2.0}, atoms=2, deadline_s=1e6)
    hand.train(0, [0.1, 0.9])
    hand.report(1, 0.5)
    hand.report(1, 0.2)  # 2nd of 2 at rung 2
    assert (hand.where(1), hand.live) == ("paused", [0, 2])
    hand.report(0, 0.9)  # best of rung 2, but 2nd of 2 at rung 1
    assert (hand.where(0), hand.live) == ("paused", [2, 3])


# ---------------------------------------------------------------- entrance: lines 5 to 9


def entrance(now_s: float, *, training_s: float, R: int = 1000) -> bool:
    """Whether a new trial enters at ``now_s`` of 100 s, when the furthest has trained for ``training_s``."""
    options = {**PLAIN, "R": R, "eta": 4.0}
    hand = Hand("hypersched", options, atoms=2, deadline_s=100.0, configurations=3)
    hand.exited(1, "failed")
    hand.exited(2, "failed")
    begin = now_s - training_s
    hand.advance(begin)
    # Trial 0 began at 0; what it has been up counts.
    hand.report(0, 0.5, at=now_s, took_s=1.0)
    return bool(hand.policy._may_enter(hand.state))


def test_a_trial_enters_only_if_it_fits() -> None:
    """Line 8: should_enter = min(R*Ta, tf*eta) < Tn. tf = 19 s: 76 < 81; tf = 21 s: not 84 < 79."""
    assert entrance(19.0, training_s=19.0)
    assert not entrance(21.0, training_s=21.0)


def test_line_8_has_R_times_Ta_as_the_other_bound() -> None:
    """R*Ta = 10 steps of 1 s: there is room until 10 s before the deadline."""
    assert entrance(89.0, training_s=89.0, R=10)
    assert not entrance(91.0, training_s=91.0, R=10)


def test_where_one_trial_trains_at_a_time_the_first_is_not_the_only_one_tried() -> None:
    """Four are compared at rung 1 before one goes on; once none may enter, the best is kept as Algorithm 3 has it."""
    options = {**PLAIN, "R": None}
    hand = Hand("hypersched", options, atoms=1, deadline_s=100.0)
    for trial, metric in enumerate([0.5, 0.4, 0.3]):
        hand.report(trial, metric, at=3.0 * (trial + 1))
        assert hand.where(trial) == "paused"
    hand.report(3, 0.6, at=12.0)
    hand.train(3, [0.7, 0.8], at=60.0)
    hand.report(3, 0.9, at=61.0)  # alone at rung 4
    assert hand.where(3) == "running"


@pytest.mark.parametrize("R", [1000, None])
def test_R_is_what_a_loop_has_unless_another_trial_comes_further(R: int | None) -> None:
    """Of loops shorter than R, or that nobody had told of, none was begun for the time of many more steps."""
    hand = Hand("hypersched", {**PLAIN, "R": R}, atoms=2, deadline_s=100.0)
    for step in range(1, 11):
        hand.report(0, 0.5, at=float(step))
    hand.report(1, 0.5, at=75.0)
    assert not hand.policy._may_enter(hand.state)  # 4 times 75 s
    hand.exited(0, "finished")
    assert hand.policy._may_enter(hand.state)  # 10 steps of 1 s
    hand.report(1, 0.5, step=11)  # trial 0 had stopped early
    assert not hand.policy._may_enter(hand.state)


def test_Ta_is_of_the_fewest_atoms_that_a_trial_may_have() -> None:
    """Trials of 4 atoms were counted as four times as slow as they are, which closed the entrance hours too early."""
    options = {**PLAIN, "r": 50, "R": 20}
    hand = Hand("hypersched", options, atoms=4, sizes=(4,), deadline_s=100.0)
    hand.train(0, [0.5, 0.5, 0.5])
    hand.report(0, 0.5, at=75.0)
    assert hand.policy._may_enter(hand.state)  # 20 steps of 1 s, of 4 s on one atom
    hand.report(0, 0.5, at=99.5)
    assert not hand.state.is_too_late


@pytest.mark.parametrize(("took_s", "state"), [(3.5, "paused"), (4.5, "running")])
def test_where_launches_take_long_one_is_kept_at_the_third_arrival(
    took_s: float, state: str
) -> None:
    """A comparison costs a launch of each trial: here 2.5 and 3.5% of the deadline, the first one 9%."""
    hand = Hand("hypersched", PLAIN, atoms=1, deadline_s=100.0)
    for trial, metric in enumerate([0.5, 0.4]):
        hand.report(trial, metric, at=10.0 + took_s * trial)
        assert hand.where(trial) == "paused"
    hand.report(2, 0.6, at=10.0 + took_s * 2)
    assert hand.where(2) == state


@pytest.mark.parametrize(("atoms", "rules"), [(2, {}), (1, {"max_trials": 1})])
def test_the_first_arrival_goes_on_where_another_trains_or_none_can_come(
    atoms: int, rules: dict[str, Any]
) -> None:
    """4.2: "unlike ASHA, a rung's first-arrived trial will not be paused"; ceil(1/4) = 1."""
    hand = Hand("hypersched", PLAIN, atoms=atoms, **rules)
    hand.report(0, 0.1)
    assert hand.where(0) == "running"


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("policy", [name for name in policies.names() if name != "fifo"])
def test_a_trial_that_diverges_does_not_keep_its_atoms(policy: str) -> None:
    """A promising trial of POP, which keeps its slot, did so until the deadline."""
    options = {"hypersched": {"r": 50}, "asha": {"r": 50}, "pop": BOUNDS, "earlyterm": BOUNDS}
    hand = Hand(policy, options.get(policy, {}), atoms=2, configurations=2)
    hand.train(0, [0.3, None, None, 0.4, None, None])
    assert hand.where(0) == "running"
    hand.report(0, None)
    assert hand.where(0) == "stopped"
    assert "stops: no finite metric in 3 reports" in hand.said


def test_a_step_that_cannot_end_is_not_begun() -> None:
    """Section 4, rule 8: the trial leaves and its atoms go to the others."""
    hand = Hand("hypersched", PLAIN, atoms=2, deadline_s=100.0)
    hand.report(0, 0.5, at=95.0, took_s=10.0)
    assert hand.where(0) == "stopped"
    assert "before the deadline" in hand.why(0)


def test_the_best_trial_waits_for_atoms_on_which_a_step_fits() -> None:
    """Each trial was stopped at its report, and in a search of few steps all atoms were idle for most of a step."""
    hand = Hand("hypersched", {**PLAIN, "r": 50}, atoms=2, configurations=2, deadline_s=100.0)
    for at in range(10, 100, 10):
        for trial, metric in enumerate((0.9, 0.5)):
            hand.report(trial, metric, at=at + (at == 90) * (2.0 + trial), took_s=10.0)
    assert (hand.live, hand.where(1), hand.launched(0)) == ([0], "paused", [1, 2])
    assert "pauses at step 9: on 1 atom another step would not end before the deadline" in hand.said


@pytest.mark.parametrize(
    ("R", "configurations", "at", "ending"),
    [(9, 1, 95.0, TOO_LATE), (1, 1, 99.0, NOTHING_LEFT), (1, 2, 99.0, TOO_LATE)],
)
def test_a_search_whose_next_step_would_be_too_long_ends_and_says_so(
    R: int, configurations: int, at: float, ending: str
) -> None:
    options = {**PLAIN, "R": R}
    hand = Hand("hypersched", options, atoms=1, configurations=configurations, deadline_s=100.0)
    hand.report(0, 0.5, at=at, took_s=10.0)
    assert hand.finished == ending
    shown = views.build(hand.state, name="x", policy="hypersched", metric="m")
    assert (shown.state, shown.ending) == ("finished", ending)


def idle() -> Hand:
    """Trial 1, the only one that ran, has ended; trial 0 is paused, and the entrance is closed."""
    options = {**PLAIN, "R": None, "cooldown": 5}
    hand = Hand("hypersched", options, atoms=3, configurations=2, deadline_s=100.0)
    hand.report(1, 0.6, at=1.0)
    hand.report(0, 0.5, at=60.0)
    hand.exited(1, "failed")
    return hand


def test_never_idle_resumes_the_best_whatever_the_entrance_rule_says() -> None:
    hand = idle()
    assert hand.live == [0]
    assert "nothing else runs" in hand.said
    assert "exploiting" in hand.notes


@pytest.mark.parametrize(
    ("rules", "live"), [({}, [0]), ({"max_atoms": 1}, [0, 1]), ({"scaling": "none"}, [0, 1])]
)
def test_atoms_that_no_live_trial_can_use_go_to_the_best_that_waits(
    rules: dict[str, Any], live: list[int]
) -> None:
    options = {**PLAIN, "r": 2, "cooldown": 5}
    hand = Hand("hypersched", options, atoms=2, deadline_s=100.0, **rules)
    for trial, metric, at in ((0, 0.9, 1.0), (1, 0.1, 1.0), (0, 0.9, 60.0), (1, 0.1, 60.1)):
        hand.report(trial, metric, at=at)
    assert hand.live == live  # trial 0 may grow when its cooldown is over, or not
    assert ("no better trial can use" in hand.said) == (len(live) > 1)


def test_who_was_woken_is_not_paused_again_for_the_rungs_below() -> None:
    hand = idle()
    hand.report(0, 0.1, at=61.0)
    assert hand.live == [0]


def test_explanation_says_why_a_trial_is_paused_and_nothing_of_the_kind_once_it_is_over() -> None:
    hand = Hand("hypersched", {**PLAIN, "R": 2}, atoms=2)
    hand.train(0, [0.1, 0.2])
    hand.report(1, 0.9)
    hand.report(2, 0.5)
    assert (hand.where(0), hand.where(2)) == ("completed", "paused")
    assert "behind the cut-off 0.9000 of rung 1: it " in "\n".join(hand.explain(2))
    assert "behind" not in "\n".join(hand.explain(0))


def test_where_a_step_takes_an_hour_a_trial_grows_as_soon_as_its_speed_is_known() -> None:
    """Five steps of cooldown kept six of eight GPUs idle for hours."""
    hand = Hand("hypersched", {}, atoms=4, configurations=1, deadline_s=36_000.0)
    hand.report(0, 0.5, at=3610.0, took_s=3600.0)
    assert hand.launched(0) == [1]
    assert "every configuration has begun" in hand.notes
    hand.report(0, 0.6, at=7210.0, took_s=3600.0)
    assert hand.launched(0) == [1, 4]

"""``seer``: SoCC'21, Algorithm 1, played with the plan of section 3.4; and what happens on a box."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.core.events import LimitsMoved
from gpusched.core.rules import Rules
from gpusched.core.trial import Cap
from gpusched.policies.seer import Options, Seer
from tests.policies.hand import Hand

EXAMPLE: dict[str, Any] = {"B": 80.0, "eta": 2.0, "t_min": 1.0}
#: Just after the end of each stage.
ENDS = [60.0 * 10 / 7 + 1e-6, 60.0 * 30 / 7 + 1e-6, 600.0]


def example(**options: Any) -> Hand:
    """Section 3.4 on its 16 atoms; trial n reports 0.01 * n once, in the first second."""
    hand = Hand("seer", {**EXAMPLE, **options}, atoms=16, deadline_s=600.0)
    for trial in hand.live:
        hand.report(trial, 0.01 * trial, at=1.0)
    return hand


def go_on(hand: Hand, seconds: int = 3) -> None:
    """Every live trial reports each second: those that are told to leave do."""
    for _ in range(seconds):
        hand.advance(hand.now + 1.0)
        for trial in list(hand.live):
            if trial in hand.state.live:
                hand.report(trial, 0.01 * trial)


def test_section_3_4_played_to_its_end() -> None:
    """Algorithm 1: 8 trials on 1 atom and 4 on 2; the worse half of each bracket goes; the best of all move up."""
    hand = example()
    assert sorted(hand.atoms(n) for n in hand.live) == [1] * 8 + [2] * 4
    assert hand.notes.startswith("stage 1 of a plan: 3 stages of 1.43, 2.86 and 5.71 min; ")
    of_one = sorted(n for n in hand.live if hand.atoms(n) == 1)
    of_two = sorted(n for n in hand.live if hand.atoms(n) == 2)
    hand.advance(ENDS[0])
    go_on(hand, 1)
    assert [n for n in of_one if hand.where(n) == "stopped"] == of_one[:4]
    assert [n for n in of_two if hand.where(n) == "stopped"] == of_two[:2]
    assert "eliminated at the end of stage 1" in hand.why(of_one[0])
    for end, sizes in ((ENDS[0], [1, 1, 1, 1, 2, 2]), (ENDS[1], [1, 1, 2])):
        hand.advance(max(hand.now, end))
        go_on(hand)
        assert [hand.atoms(n) for n in sorted(hand.live)] == sizes
    assert "of stage 2: 1 atom\n" in hand.said
    best = max(hand.live)
    hand.advance(ENDS[2] - 1.0)
    assert max(hand.live) == best


def test_stages_end_by_the_clock_whoever_has_come_how_far() -> None:
    """A trial that has not reported by then ranks worst; nobody waits for it."""
    hand = Hand("seer", EXAMPLE, atoms=16, deadline_s=600.0)
    silent = hand.live[0]
    for trial in hand.live[1:]:
        hand.report(trial, 0.1, at=1.0)
    hand.advance(ENDS[0])
    hand.report(silent, 0.9)
    assert hand.where(silent) == "stopped"


def test_failed_trials_leave_a_bracket_short() -> None:
    hand = example()
    for trial in [n for n in hand.live if hand.atoms(n) == 2]:
        hand.exited(trial, "failed")
    hand.advance(ENDS[0])
    go_on(hand)
    # 4 of 8 stay; the best two of them fill the bracket of two atoms, so two are left for the other.
    assert sorted(hand.atoms(n) for n in hand.live) == [1, 1, 2, 2]


def test_a_trial_that_may_not_grow_holds_up_no_other() -> None:
    """The growth of a trial that is refused each time does not come before all others."""
    hand = example()
    best = max(hand.live)
    hand.trial(best).cap = Cap(1, "failed on 2 atoms")
    hand.advance(ENDS[0])
    go_on(hand)
    assert {n: hand.atoms(n) for n in hand.live} == {2: 1, 3: 1, 8: 1, 9: 1, 10: 2, 11: 1}


# ---------------------------------------------------------------- the end


def one_stage(budget: float) -> Hand:
    """So many atom-minutes for one stage: a single trial, for 12 minutes of 20."""
    hand = Hand("seer", {"B": budget, "t_min": 3.0}, atoms=4, deadline_s=1200.0)
    hand.report(0, 0.5, at=1.0)
    hand.advance(720.0)
    hand.report(0, 0.6)
    return hand


def test_the_winner_trains_on_with_the_rest_of_the_budget() -> None:
    """The plan uses 12 atom-minutes; 0.6 more are 36 s for one atom."""
    hand = one_stage(12.6)
    assert hand.policy.plan.used_budget == pytest.approx(12.0)
    hand.advance(720.0 + 35.9)
    hand.report(0, 0.7)
    assert hand.where(0) == "running"
    hand.advance(720.0 + 36.1)
    hand.report(0, 0.7)
    assert hand.where(0) == "completed"


def test_without_a_budget_of_its_own_the_winner_trains_until_the_deadline() -> None:
    hand = Hand("seer", {"t_min": 1.0}, atoms=1, deadline_s=600.0)
    hand.report(0, 0.5, at=1.0)
    hand.feed(LimitsMoved(at=599.0, deadline_s=700.0))
    for at in (599.0, 601.0):
        hand.advance(at)
        hand.report(0, 0.5)
        assert hand.where(0) == "running"
    hand.advance(700.0)
    hand.report(0, 0.5)
    assert hand.where(0) == "stopped"


# ---------------------------------------------------------------- before it starts


def seer(**options: Any) -> Seer:
    return Seer(Options(**options))


def test_a_plan_that_is_cut_says_so() -> None:
    policy, rules = seer(**EXAMPLE), Rules(deadline_s=600.0)
    words = policy.plan_for(rules, 8, 600.0)[1]
    assert "of 80 atom-minutes: the plan needs 16 atoms at once, of 8" in words
    assert list(policy.problems(rules, 8)) == []
    assert "cut" not in policy.plan_for(rules, 16, 600.0)[1]


@pytest.mark.parametrize(
    ("options", "deadline_s", "named", "words"),
    [
        ({"B": 0.5, "t_min": 1.0}, 600.0, "B", "and 0.5 atom-minutes: a trial needs 1 atom"),
        ({"t_min": 1.0}, 30.0, "t_min", "no plan fits 8 atoms, 0.5 min and 4 atom-minutes"),
        ({"B": 500.0, "t_min": 0.01}, 60.0, "t_min", "those of the first stage train at once"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_message(
    options: dict[str, Any], deadline_s: float, named: str, words: str
) -> None:
    ((option, message),) = seer(**options).problems(Rules(deadline_s=deadline_s), 8)
    assert option == named
    assert words in message
    hand = Hand("seer", options, atoms=8, deadline_s=deadline_s)
    assert words in hand.notes
    assert hand.count == 0


def test_a_short_deadline_has_a_short_t_min_unless_it_is_given() -> None:
    """The paper's default of 1 minute is for deadlines of hours."""
    assert Options().arguments(Rules(deadline_s=7200.0), 8, 7200.0).t_min == 1.0
    assert Options().arguments(Rules(deadline_s=60.0), 8, 60.0).t_min == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("rules", "most"), [({}, 8), ({"max_atoms": 4}, 4), ({"sizes": (1, 2)}, 2)]
)
def test_no_bracket_is_planned_on_more_atoms_than_a_trial_may_have(
    rules: dict[str, Any], most: int
) -> None:
    """With sizes of 1 and 2, brackets were planned on 4 and 8 atoms, and their trials had 2."""
    assert Options().arguments(Rules(deadline_s=60.0, **rules), 8, 60.0).p_max == most


@pytest.mark.parametrize("atoms", [4, 8, 32])
@pytest.mark.parametrize("minutes", [10.0, 120.0])
def test_where_t_min_is_left_open_a_cut_plan_lasts_until_the_deadline(
    atoms: int, minutes: float
) -> None:
    """With t_min = 1, 8 atoms run 2 stages of 4 and 16 min; the other 100 of 120 min would be left to one trial."""
    rules = Rules(deadline_s=60.0 * minutes)
    short, _ = seer(t_min=1.0).plan_for(rules, atoms, 60.0 * minutes)
    plan, words = seer().plan_for(rules, atoms, 60.0 * minutes)
    assert plan.stages == short.stages
    assert plan.used_budget >= short.used_budget
    assert plan.stage_end_min(plan.stages) == pytest.approx(minutes, rel=0.01)
    assert plan.peak <= atoms
    assert "cut to" in words

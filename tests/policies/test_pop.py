"""``pop``: HyperDrive (Middleware'17), sections 3, 5.3 and 9."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from gpusched.core.events import LimitsMoved
from gpusched.policies.extrapolation import Outlook
from gpusched.policies.pop import Known, Options
from tests.policies.hand import Hand, Oracle

SMALL: dict[str, Any] = {"b": 2, "R": 40, "metric_min": 0.0, "metric_max": 1.0}


def pop(atoms: int, /, target: float | None = 0.9, trials: int | None = None, **about: Any) -> Hand:
    """A search that aims at ``target``, of so many configurations. What is not a rule is an option."""
    fields = {field.name for field in dataclasses.fields(Options)}
    options = {name: about.pop(name) for name in fields & about.keys()}
    return Hand(
        "pop", {**SMALL, **options}, atoms=atoms, configurations=trials, target=target, **about
    )


@pytest.fixture(autouse=True)
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    made = Oracle()
    monkeypatch.setattr("gpusched.policies.pop.extrapolate", made)
    return made


def outlook(p: float, steps: float = 3.0) -> Outlook:
    return Outlook(p, steps, p)


def boundary(oracle: Oracle, hand: Hand, trial: int, p: float | None = None) -> None:
    """Two steps of a trial, a second each, and what is said of its curve then."""
    hand.report(trial, 0.5, at=hand.now + 1.0)
    oracle.says = None if p is None else outlook(p)
    hand.report(trial, 0.5, at=hand.now + 1.0)


# ---------------------------------------------------------------- forecasts: equations 1 to 3


def test_the_horizon_is_what_the_time_left_allows(oracle: Oracle) -> None:
    """3.1.1: M_i = (Tmax - Tpass) / Epoch_i."""
    hand = pop(1, R=None, deadline_s=100.0)
    hand.report(0, 0.3, at=5.0)
    hand.report(0, 0.4, at=10.0)
    (asked,) = oracle.asked
    assert asked.curve == (0.3, 0.4)
    assert asked.horizon == 2 + (100 - 10) / 5
    assert asked.target == 0.9


def test_expected_remaining_time_is_steps_times_their_duration(oracle: Oracle) -> None:
    """Equation 3: ERT = x * Epoch; "set ERT = Tmax - Tpass" where it would be more."""
    hand = pop(1, deadline_s=100.0, trials=1)
    hand.report(0, 0.3, at=5.0)
    oracle.says = outlook(0.5, steps=4.0)
    hand.report(0, 0.4, at=10.0)
    known = hand.policy.known.get(0)
    assert known is not None
    assert known.ert_s == pytest.approx(4.0 * 5.0)
    hand.report(0, 0.4, at=20.0)
    oracle.says = outlook(0.5, steps=99.0)
    hand.report(0, 0.4, at=20.0)
    known = hand.policy.known.get(0)
    assert known.ert_s == pytest.approx(80.0)


# ---------------------------------------------------------------- poor


def test_below_the_kill_threshold_a_trial_is_poor_before_anything_is_predicted(
    oracle: Oracle,
) -> None:
    """5.3: "before computing any learning prediction we first check if the job's performance has passed .."."""
    hand = pop(2, kill_threshold=0.15)
    hand.train(0, [0.1, 0.1])
    assert hand.where(0) == "stopped"
    assert oracle.asked == []
    hand.train(1, [0.2, 0.2])
    assert hand.where(1) != "stopped"


def test_a_chance_below_0_05_is_poor(oracle: Oracle) -> None:
    """5.3: "if it is less than 0.05 we terminate it"."""
    hand = pop(2)
    hand.report(0, 0.8)
    boundary(oracle, hand, 1, p=0.049)
    assert hand.where(1) == "stopped"
    boundary(oracle, hand, 2, p=0.05)
    assert hand.where(2) != "stopped"


def test_the_best_so_far_is_never_poor(oracle: Oracle) -> None:
    hand = pop(1, trials=1)
    boundary(oracle, hand, 0, p=0.0)
    hand.report(0, 0.5)
    assert hand.where(0) == "running"


# ---------------------------------------------------------------- promising and opportunistic


def test_an_opportunistic_trial_gives_way_to_the_next_in_line(oracle: Oracle) -> None:
    """5.3: "if the job is opportunistic we suspend it and start a new job"."""
    hand = pop(1)
    boundary(oracle, hand, 0, p=0.5)  # 1 slot * 0.5: nobody is promising
    state = hand.experiment.state
    (told,) = hand.policy.explain(state, state.trials[0])
    assert re.fullmatch(r"opportunistic: .* p = 0\.50, .*; promising now: none", told)
    assert hand.where(0) == "paused"
    assert hand.live == [1]


def test_a_promising_trial_keeps_its_atoms(oracle: Oracle) -> None:
    """3.2: "these slots are assigned to run promising configurations with dedicated resources"."""
    hand = pop(2)
    boundary(oracle, hand, 0, p=0.5)  # 2 slots * 0.5 = 1
    assert hand.policy.promising == [0]
    hand.train(0, [0.5] * 5)
    assert hand.where(0) == "running"
    assert hand.launched(0) == [1]


@pytest.mark.parametrize(
    ("most", "turns"),
    [(3, [0, 1, 2, 0, 1, 2, 0]), (None, [0, 1, 0, 2, 1, 3, 0, 4, 2, 5, 1])],
)
def test_suspended_trials_and_new_ones_take_turns(
    oracle: Oracle, most: int | None, turns: list[int]
) -> None:
    """3.2: "equally shared between opportunistic configurations, e.g., in a round robin manner"."""
    hand, found = pop(1, max_trials=most), []
    while len(found) < len(turns):
        (trial,) = hand.live
        found.append(trial)
        boundary(oracle, hand, trial, p=0.3)
    assert found == turns


def test_a_suspended_trial_that_becomes_promising_comes_back_at_once(oracle: Oracle) -> None:
    """5.3: promising jobs are labelled with the priority p, which 4.2 uses "to order idle jobs"."""
    hand = pop(2)
    boundary(oracle, hand, 0, p=0.5)
    boundary(oracle, hand, 1, p=0.6)  # 2 slots * 0.5 is not more than the one slot of 0.6
    assert hand.policy.promising == [1]
    boundary(oracle, hand, 0, p=0.5)
    assert hand.where(0) == "paused"
    hand.exited(1, "failed")
    assert hand.live == [0, 2]
    assert "promising: p = 0.50" in hand.said


def test_others_make_room_for_a_promising_trial_that_waits(oracle: Oracle) -> None:
    hand = pop(2, b=4, max_trials=3)
    hand.train(0, [0.5] * 3, at=4.0)
    oracle.says = outlook(0.4)
    hand.report(0, 0.5)
    assert (hand.where(0), hand.live) == ("paused", [1, 2])
    # More is expected of 0 by now: it is promising, but there is no atom.
    hand.policy.known[0] = Known(0.9, 1.0, 4)
    hand.policy._classify(hand.state)
    hand.report(2, 0.5)  # not at a boundary
    assert hand.where(2) == "paused"
    assert hand.live == [0, 1]
    assert "gives its atoms to a promising trial" in hand.said


# ---------------------------------------------------------------- the target


def test_without_a_target_it_rises_when_it_is_reached() -> None:
    """Section 9: "gradually increasing the target once it is reached"; here by a tenth of what is still possible."""
    hand = pop(1, target=None, trials=1)
    targets = []
    for value in (0.5, 0.54, 0.6, 0.5):
        hand.report(0, value)
        targets.append(hand.notes.splitlines()[0])
    # 0.54 does not reach 0.55; 0.6 does.
    assert targets == [f"target {value} (rising)" for value in (0.55, 0.55, 0.64, 0.64)]
    assert hand.where(0) == "running"


def test_a_target_that_is_moved_in_a_running_search_is_aimed_at(oracle: Oracle) -> None:
    hand = pop(1, trials=1)
    boundary(oracle, hand, 0)
    for target, aim in ((0.95, 0.95), (None, 0.55)):
        hand.feed(LimitsMoved(at=hand.now, deadline_s=1000.0, target=target))
        boundary(oracle, hand, 0)
        assert oracle.asked[-1].target == pytest.approx(aim)

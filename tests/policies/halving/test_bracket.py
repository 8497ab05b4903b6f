"""``Bracket``: whatever happens to its trials, in whatever order, nobody waits twice and nothing is missed."""

from __future__ import annotations

from random import Random

import pytest

from gpusched.core.trial import TrialRecord, TrialState
from gpusched.policies.halving.sha import Bracket, Shape
from tests.events import reported
from tests.policies.hand import Hand

PLAN = Shape("bracket", (9, 3, 1), (1, 3, 9))


def in_line(bracket: Bracket, hand: Hand) -> list[int]:
    """Who would be given atoms, one after the other."""
    found = []
    while (trial := bracket.next_waiting(hand.state)) is not None:
        found.append(trial.id)
        bracket.launched(trial.id)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_any_trial_may_come_go_or_be_dropped_at_any_time(seed: int) -> None:
    """Twice, too, and although it waits, runs or is out: that is a fact for the bracket, never an error."""
    random, hand = Random(seed), Hand("fifo", start=False)
    bracket = Bracket(PLAN)
    states = (TrialState.PAUSED, TrialState.RUNNING, TrialState.YIELDING, TrialState.FAILED)
    for number in range(9):
        hand.state.trials[number] = TrialRecord(number, {}, state=TrialState.RUNNING)
        bracket.enter(number)
    for _ in range(300):
        trial = hand.state.trials[random.randrange(9)]
        trial.state, trial.score = random.choice(states), random.random()
        trial.held_by_user = random.random() < 0.1
        match random.randrange(6):
            case 0:
                bracket.arrive(trial)
            case 1:
                bracket.drop(trial.id)
            case 2:
                bracket.launched(trial.id)
            case 3:
                bracket.comes_first(trial.id)
            case 4:
                found = in_line(bracket, hand)
                assert len(found) == len(set(found))
            case 5 if bracket.is_complete and not bracket.is_over:
                out, is_over = bracket.advance()
                assert is_over or not set(out) & {n for n in range(9) if bracket.is_waiting(n)}


def test_who_left_by_itself_comes_first_and_once() -> None:
    hand, bracket = Hand("fifo", start=False), Bracket(PLAN)
    for number in range(3):
        hand.state.trials[number] = TrialRecord(number, {}, state=TrialState.PAUSED)
        bracket.comes_first(number)
    bracket.comes_first(1)
    assert in_line(bracket, hand) == [1, 2, 0]


def tell(hand: Hand, trial: int, metric: float) -> None:
    """A report of a trial that does not leave yet, though it may be told to."""
    known = hand.trial(trial)
    step = known.step + 1
    numbers = {"trial": trial, "incarnation": known.incarnation, "seq": known.seq + 1, "step": step}
    hand.send(reported(at=hand.now, metric=metric, step_time_s=1.0, **numbers))


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_a_winner_whose_processes_fail_while_it_leaves(outcome: str) -> None:
    """It is told to pause, the others end the halving, it is among the best, and then it fails or is lost."""
    hand = Hand("sha", {"r": 1, "R": 4, "eta": 2.0}, atoms=2, configurations=4)
    tell(hand, 0, 0.9)
    for trial in (1, 2, 3):
        hand.report(trial, 0.1 * trial)
    assert (hand.where(0), hand.where(3)) == ("yielding", "running")
    hand.exit(0, outcome)
    assert hand.where(0) == ("failed" if outcome == "failed" else "running")
    for _ in range(20):
        for trial in hand.live:
            hand.report(trial, 1.0 - 0.1 * trial)
    assert hand.finished == "nothing left to run"
    assert hand.where(3 if outcome == "failed" else 0) == "completed"

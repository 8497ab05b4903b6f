"""HyperSched: how many atoms a trial gets, and when it grows (Algorithm 3, lines 21 to 25)."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.core.trial import Cap
from gpusched.policies.hypersched import dealt
from tests.policies.hand import Hand
from tests.policies.test_hypersched import PLAIN


def test_uniform_allocation_gives_the_left_over_to_the_best() -> None:
    """Section 5: "one atom to each trial in the sorted list in a round-robin fashion"; 5 atoms, 2 trials: 3 and 2."""
    options = {**PLAIN, "cooldown": 0, "R": None}
    hand = Hand("hypersched", options, atoms=5, configurations=2, deadline_s=1000.0)
    hand.report(0, 0.5, took_s=1.0, at=1.0)
    assert hand.launched(0) == [1, 3]  # the only one that has a metric: first of the live ones
    hand.report(1, 0.5, took_s=1.0, at=2.0)
    assert hand.launched(1) == [1, 2]
    assert "its share of 5 atoms is 3" in hand.explain(0)


SIZES = (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("atoms", "live", "sizes", "most", "expected"),
    [
        (8, 3, SIZES, None, (4, 2, 2)),
        (8, 1, SIZES, None, (8,)),
        (8, 5, SIZES, None, (2, 2, 2, 1, 1)),
        (8, 3, SIZES, 2, (2, 2, 2)),
        (8, 3, (2, 4), None, (4, 2, 2)),
        (9, 2, (3, 6), None, (6, 3)),
        (2, 3, SIZES, None, (1, 1, 1)),  # devices were lost
        (8, 2, (4, 8), 2, (4, 4)),  # nothing allowed is so small
        (8, 3, tuple(range(1, 9)), None, (3, 3, 2)),  # as without sizes
    ],
)
def test_atoms_are_dealt_out_in_allowed_sizes(
    atoms: int, live: int, sizes: tuple[int, ...], most: int | None, expected: tuple[int, ...]
) -> None:
    """Line 21 and section 4.3: what is left goes to the best, and atoms that fit nobody alone stay idle."""
    assert dealt(atoms, live, sizes, most) == expected


def test_where_other_numbers_have_failed_the_best_has_a_larger_power_of_two() -> None:
    hand = Hand("hypersched", {**PLAIN, "cooldown": 0, "R": None}, atoms=8, configurations=3)
    hand.state.powers_alone = True
    hand.report(0, 0.5, at=1.0)
    assert hand.launched(0) == [1, 4]


def test_growth_waits_for_the_cooldown() -> None:
    """Line 24: its_since_resize > COOLDOWN."""
    options = {**PLAIN, "cooldown": 3, "R": None}
    hand = Hand("hypersched", options, atoms=4, configurations=1)
    hand.train(0, [0.5] * 3)
    assert hand.atoms(0) == 1
    hand.report(0, 0.5)
    assert hand.launched(0) == [1, 4]
    hand.trial(0).cap = Cap(2, "failed on 4 atoms")
    assert "its share of 4 atoms is 2" in hand.explain(0)


def test_the_steps_that_a_growth_brings_are_the_trials_own() -> None:
    """A step of trial 1 takes ten times as long as a usual one: a tenth of the steps that were told of came."""
    hand = Hand("hypersched", {**PLAIN, "cooldown": 0, "r": 50}, atoms=2, configurations=2)
    hand.train(0, [0.5] * 4)
    hand.report(1, 0.5, at=10.0, took_s=10.0)
    hand.exited(0, "finished")
    hand.report(1, 0.5, at=20.0, took_s=10.0)
    assert "grows 1 -> 2: 98 more steps" in hand.said


def one_that_is_left() -> Hand:
    """Trial 0 of four on an atom each, past its cooldown; the atom of trial 1 is free, those of 2 and 3 drain."""
    options = {**PLAIN, "cooldown": 2, "R": None, "r": 50}
    hand = Hand("hypersched", options, atoms=4, configurations=4)
    for _ in range(4):
        for trial in range(4):
            hand.report(trial, 0.9 - trial / 10)
    hand.exited(1, "failed")
    hand.releases = False
    hand.exited(2, "failed")
    hand.exited(3, "failed")
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


def test_a_node_is_not_kept_for_a_trial_that_cannot_leave_its_own() -> None:
    """Trial 0 has all of node 0; its share of both made node 1 wait for it until the deadline."""
    nodes = {"d0": 0, "d1": 0, "d2": 1, "d3": 1}
    options = {**PLAIN, "r": 2, "cooldown": 0}
    hand = Hand(
        "hypersched",
        options,
        atoms=4,
        configurations=2,
        islands=nodes,
        islands_apart=True,
        deadline_s=100.0,
    )
    for trial, metric, at in ((0, 0.9, 1.0), (1, 0.1, 1.0), (0, 0.9, 60.0), (1, 0.1, 60.1)):
        if hand.trial(trial).is_live:
            hand.report(trial, metric, at=at)
    hand.report(0, 0.9, at=61.0)
    assert (hand.atoms(0), hand.live) == (2, [0, 1])


@pytest.mark.parametrize(
    ("cap", "ending"),
    [(None, ([1, 2], "running")), (Cap(1, "failed on 2 atoms"), ([1], "stopped"))],
)
def test_a_step_that_fits_on_more_atoms_is_trained_if_the_trial_may_have_them(
    cap: Cap | None, ending: tuple[list[int], str]
) -> None:
    """With 8 s left a step of 10 s does not fit on one atom, and fits on two."""
    options = {**PLAIN, "r": 50, "cooldown": 0, "R": None}
    hand = Hand("hypersched", options, atoms=2, configurations=2, deadline_s=100.0)
    for at in range(10, 90, 10):
        for trial in range(2):
            hand.report(trial, 0.5, at=float(at), took_s=10.0)
    hand.exited(1, "failed")
    hand.trial(0).cap = cap
    hand.report(0, 0.5, at=92.0, took_s=10.0)
    assert (hand.launched(0), hand.where(0)) == ending


def test_atoms_that_do_not_come_are_waited_for_one_report_long() -> None:
    hand = one_that_is_left()
    hand.report(0, 0.9)
    assert hand.launched(0) == [1]
    hand.releases = True
    hand.report(0, 0.9)
    assert hand.launched(0) == [1, 2]


def growth_at(left_s: float, **rules: Any) -> bool:
    """Whether a trial on 1 atom grows to 4 with so much time left, launches costing 60 s."""
    options = {**PLAIN, "cooldown": 1, "R": None}
    hand = Hand("hypersched", options, atoms=4, configurations=1, deadline_s=1000.0, **rules)
    hand.report(0, 0.5, at=61.0)
    hand.report(0, 0.5, at=1000.0 - left_s)
    return hand.launched(0) == [1, 4]


def test_growth_must_pay_within_the_time_left() -> None:
    """Line 23: (Tn - To) * s(4) > Tn * s(1); linear, To = 60: 80 s pay the same, more pays."""
    assert growth_at(81.0)
    assert not growth_at(80.0)


def test_growth_looks_at_the_scaling() -> None:
    """Line 22: with s(a) = sqrt(a) twice the overhead must be left; with no scaling nothing pays."""
    assert growth_at(121.0, scaling="sqrt")
    assert not growth_at(120.0, scaling="sqrt")
    assert not growth_at(900.0, scaling="none")


def test_cooldown_step_time_and_rungs_count_steps_where_a_report_stands_for_many() -> None:
    """``trial.report(step=iteration)`` every 100 iterations of 0.01 s; r = 250 is passed at 300."""
    options = {**PLAIN, "cooldown": 250, "r": 250, "R": 10_000}
    hand = Hand("hypersched", options, atoms=2, configurations=1)
    for step in (100, 200):
        hand.report(0, 0.5, step=step, took_s=0.01)
        assert hand.launched(0) == [1], "within the cooldown"
    hand.report(0, 0.5, step=300, took_s=0.01)
    assert hand.launched(0) == [1, 2]
    assert hand.state.speed.step_on_one_atom_s == pytest.approx(0.01)
    assert "rung 250: 1st of 1" in hand.explain(0)[0]

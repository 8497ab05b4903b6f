"""Policies that lead one trial through a list of sizes."""

from __future__ import annotations

from gpusched.policies import profile
from tests.policies.hand import Hand


def test_a_rehearsal_waits_for_atoms_that_are_not_released_yet() -> None:
    """On GPUs a release takes longer than two quick steps: the growth would be left out."""
    options = {"sizes": (1, 1, 2, 1), "steps": 2}
    hand = Hand(f"{profile.__file__}:Rehearsal", options, atoms=2, max_trials=2)
    hand.releases = False
    hand.train(0, [0.5] * 6)
    assert (hand.launched(0), hand.where(0)) == ([1, 1], "running")
    hand.releases = True
    hand.release()
    hand.train(0, [0.5] * 5)
    assert (hand.launched(0), hand.where(0)) == ([1, 1, 2, 1], "completed")
    hand.train(1, [0.5] * 11)
    assert (hand.launched(1), hand.where(1)) == ([1], "completed")

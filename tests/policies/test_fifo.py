"""``fifo``: HyperDrive's Default policy (Middleware'17, section 4.2); and the rehearsal's."""

from __future__ import annotations

from gpusched.policies import rehearsal
from tests.policies.hand import Hand


def test_reports_change_nothing_until_R() -> None:
    """4.2: "ignores all application statistics": the worst trial runs to the end like the best."""
    hand = Hand("fifo", {"R": 5}, atoms=2)
    hand.train(0, [0.9] * 4)
    hand.train(1, [0.0, None, 0.0, 0.0])
    assert hand.live == [0, 1]
    hand.report(1, 0.0)
    assert hand.where(1) == "completed"
    assert hand.live == [0, 2]


# ---------------------------------------------------------------- one trial through a list of sizes


def test_a_rehearsal_waits_for_atoms_that_are_not_released_yet() -> None:
    """On GPUs a release takes longer than two quick steps: the growth would be left out."""
    options = {"sizes": (1, 1, 2, 1), "steps": 2}
    hand = Hand(rehearsal.REHEARSAL, options, atoms=2, max_trials=2)
    hand.releases = False
    hand.train(0, [0.5] * 6)
    assert (hand.launched(0), hand.where(0)) == ([1, 1], "running")
    hand.releases = True
    hand.release()
    hand.train(0, [0.5] * 5)
    assert (hand.launched(0), hand.where(0)) == ([1, 1, 2, 1], "completed")
    hand.train(1, [0.5] * 11)
    assert (hand.launched(1), hand.where(1)) == ([1], "completed")

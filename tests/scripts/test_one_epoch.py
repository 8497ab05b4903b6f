"""The baseline of arXiv 2307.15422 as a policy: every configuration one step, then only the best."""

from __future__ import annotations

from pathlib import Path

from tests.policies.hand import Hand

ONE_EPOCH = Path(__file__).resolve().parents[2] / "scripts/papers/one_epoch.py"


def test_each_has_one_step_and_the_best_trains_to_its_end() -> None:
    """The last ones that began were never paused, and trained on beside the best."""
    hand = Hand(f"{ONE_EPOCH}:OneEpoch", {"configurations": 6, "R": 5}, atoms=2)
    for trial in range(6):
        hand.report(trial, 0.1 * trial)
    assert hand.live == [4, 5], "the two best, on an atom each"
    assert [hand.trial(trial).step for trial in range(6)] == [1] * 6
    hand.train(5, [0.6] * 4)
    assert hand.where(5) == "completed"
    assert hand.live == [3, 4]

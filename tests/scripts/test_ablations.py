"""HyperSched's ablations (SoCC'19, section 6.1), which ``scripts/papers`` runs: what each switch changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.policies.hand import Hand

NAME = f"{Path(__file__).resolve().parents[2] / 'scripts/papers/ablations.py'}:Ablated"
PLAIN: dict[str, Any] = {"r": 1, "R": 100, "eta": 4.0, "cooldown": 0}


def hand(atoms: int, options: dict[str, Any], **more: Any) -> Hand:
    return Hand(NAME, {**PLAIN, **options}, atoms=atoms, **more)


def test_without_speculation_a_trial_is_judged_once_on_arrival_against_floor() -> None:
    """Figure 5: "without speculative evaluation, trials are paused if they arrive early at a rung"."""
    search = hand(1, {"speculation": False})
    for trial, metric in enumerate([0.5, 0.4, 0.3]):
        search.report(trial, metric)
        assert search.where(trial) == "paused"
    assert "pauses: 1st of 1 at rung 1, promotion begins when 4 trials have come" in search.said
    search.report(3, 0.6)
    assert search.where(3) == "running"


def test_exploration_fraction_replaces_the_entrance_rule() -> None:
    """Figure 7: "after fraction x T time has passed, no new trials will be started"."""
    search = hand(2, {"exploration_fraction": 0.3, "resize": False}, deadline_s=100.0)
    search.report(0, 0.9, at=29.0)
    search.report(1, 0.1, at=29.0)
    assert search.live == [0, 2]
    search.report(2, 0.1, at=30.0)
    assert search.live == [0]


def grows(options: dict[str, Any], overhead_s: float = 0.0, left_s: float = 61.0) -> list[int]:
    search = hand(4, {"R": None, **options}, configurations=1, scaling="none")
    began_s = 1000.0 - left_s
    search.report(0, 0.5, at=began_s, took_s=began_s - overhead_s)
    return search.launched(0)


def test_growth_without_its_profile_and_without_resizing() -> None:
    """Figures 8 and 9."""
    assert grows({}) == [1]
    assert grows({"assume_linear": True}) == [1, 4]
    assert grows({"assume_linear": True}, overhead_s=60.0) == [1]
    assert grows({"assume_linear": True, "overhead_aware": False}, overhead_s=60.0) == [1, 4]
    assert grows({"assume_linear": True, "resize": False}) == [1]


def test_without_never_idle_the_search_ends_with_paused_trials() -> None:
    search = hand(2, {"resize": False}, configurations=2, deadline_s=100.0)
    search.report(0, 0.5, at=1.0)
    search.report(1, 0.1, at=60.0)
    search.exited(0, "failed")
    assert (search.launched(1), search.finished) == ([1], "nothing left to run")

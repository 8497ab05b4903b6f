"""``hermes``: Electronics 2021, sections 3.1 to 3.3, Algorithms 1 to 3."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpusched.policies.hermes import Job
from tests.policies.hand import Hand

#: Losses, four reports a quantum: one every second, quanta of four.
LOSSES: dict[str, Any] = {"quantum_s": 4.0, "R": 1000, "milestones": ()}


def table(atoms: int = 1, milestones: tuple[float, ...] = (), **more: Any) -> Hand:
    options = {**LOSSES, "milestones": milestones}
    return Hand("hermes", options, atoms=atoms, mode="min", **more)


def turn(hand: Hand, trial: int, losses: list[float | None]) -> None:
    """Reports a second apart."""
    for loss in losses:
        hand.report(trial, loss, at=hand.now + 1.0)


# ---------------------------------------------------------------- the equations of 3.3


def quantum(job: Job, losses: list[float | None]) -> float:
    for loss in losses:
        job.saw(loss)
    job.end_quantum(0.0)
    return job.speed


def test_C_of_the_first_quantum_is_its_range_over_the_number_of_losses() -> None:
    """C_j(0) = (max L - min L) / |L|."""
    assert quantum(Job(10.0), [9.0, 10.0, 6.0, 7.0]) == pytest.approx((10.0 - 6.0) / 4)


def test_C_of_later_quanta_is_the_fall_of_the_mid_range_over_the_number_of_losses() -> None:
    """loss_j(i) = (max L + min L) / 2; C_j(i) = (loss_j(i-1) - loss_j(i)) / |L_j(i)|."""
    job = Job(10.0)
    quantum(job, [10.0, 6.0])  # 8
    assert quantum(job, [7.0, 6.5, 5.0, 6.0]) == pytest.approx((8.0 - 6.0) / 4)
    assert quantum(job, [7.0, 7.5]) == pytest.approx((6.0 - 7.25) / 2)


def test_losses_that_are_not_finite_do_not_count() -> None:
    job = Job(10.0)
    assert quantum(job, [8.0, None, 6.0]) == pytest.approx(2.0 / 2)
    assert quantum(job, [None]) == -math.inf
    assert quantum(job, [6.0]) == pytest.approx(1.0)


# ---------------------------------------------------------------- Algorithm 3


def test_every_trial_has_a_first_quantum_before_any_has_a_second() -> None:
    """ "Hermes parallelizes hyper-parameter optimization by time-sharing": early feedback from all."""
    hand = table()
    order = []
    for _ in range(4):
        (trial,) = hand.live
        order.append(trial)
        turn(hand, trial, [10.0, 9.0, 8.0, 7.0])
    assert order == [0, 1, 2, 3]
    assert hand.count == 4


def after_first_turns(falls: list[float]) -> Hand:
    """Each trial has had a first quantum in which its loss fell by this from 10."""
    hand = table(configurations=len(falls))
    for trial, fall in enumerate(falls):
        turn(hand, trial, [10.0, 10.0, 10.0, 10.0 - fall])
    return hand


def test_the_highest_C_keeps_the_device_without_a_pause() -> None:
    """Algorithm 3, line 13; lines 14 to 18: nobody is preempted who would be scheduled again."""
    hand = after_first_turns([1.0, 6.0, 3.0])
    assert "its turn: its loss falls by 1.5 a report, the fastest that waits" in hand.said
    launches = len(hand.launched(1))
    turn(hand, 1, [4.0, 4.0, 3.0, 1.0])  # mid-range from 7 to 2.5 in 4: C = 1.125
    assert hand.live == [1]
    assert len(hand.launched(1)) == launches


def test_who_converges_more_slowly_than_one_that_waits_is_preempted() -> None:
    hand = after_first_turns([1.0, 6.0])
    turn(hand, 1, [7.0, 7.0, 7.0, 7.0])  # mid-range stays at 7: C = 0 < 0.25
    assert hand.live == [0]
    assert hand.where(1) == "paused"
    told = "pauses: its loss falls by 0 a report, that of the next one falls by 0.25 a report"
    assert told in hand.said


# ---------------------------------------------------------------- Algorithms 1 and 2


def test_at_most_four_trials_a_device_are_under_way() -> None:
    hand = table(atoms=2)
    for _ in range(60):
        hand.report(hand.live[0], 10.0, at=hand.now + 1.0)
    assert hand.count == 8


# ---------------------------------------------------------------- quanta


def test_the_quantum_grows_as_the_loss_falls() -> None:
    """3.3: "we gradually increase the length of a job's quantum once it achieves a certain milestone"."""
    hand = table(milestones=(0.5, 0.9), configurations=1)
    hand.report(0, 10.0)
    quanta = []
    for loss in (6.0, 5.0, 4.0, 1.0, 8.0):
        hand.report(0, loss)
        quanta.append(hand.policy.job(0).quantum_s)
    assert quanta == [4.0, 8.0, 8.0, 16.0, 16.0]


def test_where_more_is_better_what_is_missing_to_the_best_metric_is_the_loss() -> None:
    options = {**LOSSES, "milestones": (0.5,), "metric_max": 1.0}
    hand = Hand("hermes", options, atoms=1)
    turn(hand, 0, [0.2, 0.5, 0.59])
    assert hand.policy.job(0).passed == 0
    turn(hand, 0, [0.6])
    assert hand.policy.job(0).passed == 1
    turn(hand, 0, [0.6] * 4)
    assert hand.policy.job(0).speed == pytest.approx((0.6 - 0.2) / 8)


def test_a_quantum_shorter_than_a_handover_is_stretched() -> None:
    hand = Hand("hermes", {**LOSSES, "quantum_s": 1.0}, atoms=1, mode="min")
    hand.report(0, 10.0, at=6.0, took_s=1.0)  # launched at 0: 5 s until its first step began
    hand.advance(6.5)
    hand.report(0, 9.0)
    assert hand.live == [1]
    hand.report(1, 10.0, at=12.5, took_s=1.0)
    hand.report(1, 9.0, at=12.6)
    assert hand.where(1) == "paused"
    hand.report(2, 9.0, at=14.6)  # within 5 s of its start nobody is preempted
    hand.report(2, 9.0, at=16.6)
    assert hand.where(2) == "running"

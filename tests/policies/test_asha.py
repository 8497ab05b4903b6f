"""``asha``: HyperSched (SoCC'19) Algorithms 1 and 2, and the ASHA paper's Algorithm 1."""

from __future__ import annotations

from tests.policies.hand import Hand


def test_a_paused_trial_is_promoted_when_it_comes_to_be_among_the_best() -> None:
    """Figure 2 and get_job(): the best of four resumes once the fourth, a worse one, has arrived."""
    hand = Hand("asha", {"r": 1, "eta": 4.0}, atoms=1)
    for trial, metric in enumerate([0.2, 0.9, 0.1, 0.3]):
        hand.report(trial, metric)
    assert "1st of 1" in hand.trial(0).story[-2][1] + hand.why(0), "lines 10 to 12"
    assert hand.live == [1]
    assert hand.launched(1) == [1, 1]
    assert "promoted from rung 1" in hand.said


def test_where_no_configuration_is_left_the_best_that_wait_continue() -> None:
    """Of three floor(3/4) = 0 were promoted, and the search was over with hours left."""
    hand = Hand("asha", {"r": 1, "R": 100}, atoms=2, configurations=3)
    hand.report(0, 0.2)
    hand.report(1, 0.9)
    hand.report(2, 0.1)
    assert hand.finished is None
    assert hand.live == [0, 1]
    hand.train(1, [0.9, 0.9, 0.95])
    assert hand.finished is None


def test_a_trial_is_judged_once_for_each_rung() -> None:
    """Line 8 asks for equality: a later, better metric changes nothing, and neither does a repeated step."""
    hand = Hand("asha", {"r": 2, "eta": 4.0, "R": 100}, atoms=1)
    for trial in range(3):
        hand.train(trial, [0.1, 0.1 * (trial + 1)])
    hand.train(3, [0.0, 0.8])  # the eta-th arrival, among the best floor(n/eta) = 1
    assert (hand.where(3), hand.launched(3)) == ("running", [1]), "without a pause"
    hand.report(3, 0.0, step=2)  # after a fault it repeats a step
    hand.train(3, [0.9] * 5)
    assert hand.trial(3).step == 7
    assert hand.where(3) == "running"
    rung = hand.policy.ladder.rungs[0]
    assert rung.score(3) == 0.8


def test_the_furthest_trained_promotable_trial_comes_first() -> None:
    """get_job(): "let theta_k be the furthest trained promotable configuration"; Algorithm 1, line 19."""
    hand = Hand("asha", {"r": 1, "eta": 2.0, "R": 100}, atoms=1)
    for trial, metric in enumerate([0.6, 0.5]):  # the second arrival: floor(2/2) = 1, 0 is promoted
        hand.report(trial, metric)
    hand.report(0, 0.6)  # rung 2: first of 1, floor(1/2) = 0: pauses; nobody is promotable
    assert hand.where(0) == "paused"
    assert hand.live == [2]
    hand.report(2, 0.55)  # rung 1: 2nd of 3, floor(3/2) = 1: pauses
    hand.report(3, 0.58)  # rung 1: 2nd of 4: goes on
    assert hand.where(3) == "running"
    hand.report(
        3, 0.4
    )  # rung 2: 2nd of 2; 0 is the best one there now, further trained than anybody
    assert hand.live == [0]


def test_R_completes_and_may_be_left_out() -> None:
    """Line 5; ASHA paper: "there is no bound on the number of rungs"."""
    hand = Hand("asha", {"r": 4, "R": 6}, atoms=1)
    hand.train(0, [0.1] * 3)
    hand.report(0, 0.1, step=6)
    assert hand.where(0) == "completed"
    endless = Hand("asha", {"r": 1, "R": None, "eta": 2.0}, atoms=1)
    ladder = endless.policy.ladder
    assert ladder.at(1 << 20) is not None
    assert ladder.rungs[-1].milestone == 1 << 20

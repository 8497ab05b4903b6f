"""Illegal transitions, and what a trial knows of itself."""

from __future__ import annotations

import pytest

from gpusched.core.trial import InvalidTransition, TrialRecord, TrialState

S = TrialState


def test_an_illegal_transition_tells_the_story_of_the_trial() -> None:
    trial = TrialRecord(7, {})
    trial.go(S.STARTING, 1.0, "first launch")
    trial.tell(1.5, "something happened")
    trial.go(S.PAUSED, 2.0, "no")
    trial.go(S.STOPPED, 2.25, "")
    with pytest.raises(InvalidTransition) as raised:
        trial.go(S.RUNNING, 3.0, "up")
    assert trial.state is S.STOPPED
    lines = str(raised.value).splitlines()
    assert lines[0] == "trial 7: stopped -> running is illegal"
    assert [line.split() for line in lines[1:]] == [
        ["1.000s", "pending", "->", "starting:", "first", "launch"],
        ["1.500s", "something", "happened"],
        ["2.000s", "starting", "->", "paused:", "no"],
        ["2.250s", "stopped"],
    ]


def test_a_change_without_a_reason_does_not_show_the_reason_of_an_earlier_one() -> None:
    trial = TrialRecord(0, {})
    for to, why in ((S.STARTING, ""), (S.PAUSED, "disk full"), (S.STARTING, ""), (S.PAUSED, "")):
        trial.go(to, 1.0, why)
        assert trial.reason == (why or to.value)

"""Illegal transitions, and what a trial knows of itself."""

from __future__ import annotations

import pytest

from gpusched.core.trial import InvalidTransition, TrialRecord, TrialState
from gpusched.protocol import Report

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


def test_best_score_and_its_step() -> None:
    trial = TrialRecord(0, {})
    for step, metric in enumerate([0.5, 0.7, 0.7, None, 0.6], 1):
        trial.record(Report(1, step, step), metric, 1.0, 1, float(step))
    assert (trial.score, trial.best_score, trial.best_step) == (0.6, 0.7, 2)

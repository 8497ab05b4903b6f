"""The progress watchdog: what silence means, and when it means nothing."""

from __future__ import annotations

import pytest

from gpusched.core.commands import Kill
from gpusched.core.decisions import Start
from gpusched.core.events import DaemonResumed, DevicesReleased
from gpusched.core.trial import TrialState
from tests.core import stages
from tests.helpers import Script, SetTimer

S = TrialState
WATCHED = {"watch": True, "startup_limit_s": 100.0}


def watch(script: Script) -> list[object]:
    """The timer fires when it is due; what follows but the timer itself."""
    due = script.state.timers["watch"]
    script.wait(max(0.0, due - script.now)).timer("watch")
    return [command for command in script.take() if not isinstance(command, SetTimer)]


def silent_for(script: Script, seconds: float) -> list[object]:
    until, killed = script.now + seconds, []
    while script.state.timers["watch"] <= until:
        killed += watch(script)
    return killed


def with_intervals(*seconds: float, **rules: object) -> Script:
    script = stages.running(**{**WATCHED, **rules})
    for step, interval_s in enumerate(seconds, 2):
        script.wait(interval_s).report(0, 0.1, step=step, step_time_s=0.1).drop()
    return script


def test_the_limit_is_a_minute_for_quick_trials() -> None:
    script = with_intervals(1.0, 1.0, 1.0)
    assert silent_for(script, 59.0) == []
    assert silent_for(script, 21.0) == [Kill(0, 1, 5.0, stacks=True)]
    doom = script.trial(0).doom
    assert "no report for" in doom.why


def test_the_limit_is_five_median_intervals_for_slow_ones() -> None:
    script = with_intervals(30.0, 300.0, 30.0, 28.0, 32.0)
    assert script.trial(0).report_s == 30.0
    assert silent_for(script, 149.0) == []
    assert silent_for(script, 21.0) == [Kill(0, 1, 5.0, stacks=True)]


def test_intervals_do_not_span_two_incarnations() -> None:
    script = with_intervals(1.0, 1.0)
    script.exited(0, "lost").drop().wait(500.0).released("d0").drop()
    script.wait(1.0).report(0, 0.1, step=2, step_time_s=0.1).drop()
    assert max(script.trial(0).intervals_s) < 5.0


def test_the_stuck_rank_is_in_the_message_of_a_trial_that_fails_for_it() -> None:
    script = with_intervals(1.0, max_infrastructure_faults=0)
    silent_for(script, 80.0)
    stuck = "rank 1 is stuck at train.py:5 in load"
    script.wants(Start(1)).exited(0, "killed", error=stuck).drop()
    assert script.trial(0).state is S.FAILED
    error = script.trial(0).error or ""
    assert error.startswith("no report for")
    assert f": {stuck}; 1 times without progress" in error


def test_after_a_suspend_or_without_a_daemon_silence_means_nothing() -> None:
    script = with_intervals(1.0, 1.0)
    script.wait(3600.0).timer("watch")
    assert not [c for c in script.take() if isinstance(c, Kill)], "the machine slept"
    assert silent_for(script, 55.0) == []
    script.feed(DaemonResumed(at=script.now, epoch=2)).drop()
    assert silent_for(script, 55.0) == [], "a new daemon listens for a while first"
    assert silent_for(script, 20.0) == [Kill(0, 1, 5.0, stacks=True)]


@pytest.mark.parametrize("device", ["d0", "d1"])
def test_devices_are_followed_after_the_end(device: str) -> None:
    script = stages.running().asked("cancel").drop()
    script.exited(0, "killed").drop()
    assert script.experiment.state.finished
    assert script.state.devices.draining == 1
    script.feed(DevicesReleased(at=script.now, devices=(device,)))
    assert script.state.devices.draining == (1 if device == "d1" else 0)

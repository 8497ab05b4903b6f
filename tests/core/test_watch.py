"""The progress watchdog: what silence means, and when it means nothing."""

from __future__ import annotations

import pytest

from gpusched.core.commands import Command, ConfirmRelease, Kill
from gpusched.core.decisions import Resize, Start
from gpusched.core.events import DaemonResumed
from gpusched.core.trial import TrialState
from tests.core import stages
from tests.helpers import Script, launch

S = TrialState
WATCHED = {"watch": True, "startup_limit_s": 100.0, "deadline_s": 800.0}
KILL_HUNG = Kill(0, 1, 5.0, stacks=True)


def silent_for(script: Script, seconds: float) -> list[Command]:
    """The timer fires whenever it is due; the commands that follow."""
    until, killed = script.now + seconds, []
    while script.state.timers["watch"] <= until:
        killed += script.timer("watch").take()
    script.now = until
    return killed


def with_intervals(*seconds: float, **rules: object) -> Script:
    script = stages.running(**{**WATCHED, **rules})
    for step, interval_s in enumerate(seconds, 2):
        silent_for(script, interval_s)
        script.report(0, 0.1, step=step, step_time_s=0.1).drop()
    return script


def test_who_does_not_come_up_is_killed_and_launched_again() -> None:
    script = stages.starting(**{**WATCHED, "deadline_s": 200.0})
    assert silent_for(script, 100.0) == []
    assert silent_for(script, 40.0) == [KILL_HUNG], "once is enough"
    script.exited(0, "killed").expect(ConfirmRelease(("d0",)))
    story = script.trial(0).story[-1][1]
    assert "no report for 110 s (limit 100 s; hang_limit in the recipe allows more);" in story
    assert story.endswith("continues from step 0")
    script.released("d0").expect(launch(0, 2, "d0"))
    assert silent_for(script, 90.0) == []


@pytest.mark.parametrize(
    ("hang_limit_s", "step_time_s", "limit_s"),
    [(None, 1.0, 60.0), (None, 30.0, 150.0), (20.0, 30.0, 20.0)],
)
def test_who_is_silent_for_too_long_is_killed(
    hang_limit_s: float | None, step_time_s: float, limit_s: float
) -> None:
    script = stages.starting(**WATCHED, hang_limit_s=hang_limit_s)
    script.report(0, 0.5, step_time_s=step_time_s).drop()
    assert silent_for(script, limit_s) == []
    assert silent_for(script, 10.0) == [KILL_HUNG]
    doom = script.trial(0).doom
    assert f"no report for {limit_s + 10:.0f} s (limit {limit_s:.0f} s;" in doom.why


def test_the_limit_is_five_of_the_longest_intervals_for_slow_ones() -> None:
    script = with_intervals(30.0, 50.0, 30.0, 28.0, 32.0)
    assert script.trial(0).report_s == 30.0
    assert silent_for(script, 249.0) == []
    assert silent_for(script, 21.0) == [KILL_HUNG]


def test_a_rare_evaluation_and_a_long_save_are_no_hang_in_a_long_search() -> None:
    script = with_intervals(*[2.0] * 9, deadline_s=4000.0)
    assert silent_for(script, 195.0) == []
    assert silent_for(script, 20.0) == [KILL_HUNG]
    # At the same step in the next launch it may take twice as long.
    script.exited(0, "killed").drop().released("d0").drop()
    script.report(0, 0.1, step=9, step_time_s=0.1).drop()
    assert silent_for(script, 395.0) == []
    assert silent_for(script, 20.0) == [Kill(0, 2, 5.0, stacks=True)]
    script = with_intervals(*[2.0] * 9)
    script.saved(0, 9, save_s=100.0).drop()
    assert silent_for(script, 255.0) == []


def test_a_first_step_may_take_long_where_nobody_knows_and_where_all_steps_do() -> None:
    for deadline_s, first_s in ((80_000.0, 10_000.0), (30_000.0, 7200.0), (3600.0, 1800.0)):
        script = stages.starting(**{**WATCHED, "deadline_s": deadline_s})
        assert silent_for(script, first_s) == [], "epochs of 20 minutes in a search of an hour"
        assert silent_for(script, 20.0) == [KILL_HUNG]
    script = Script(devices=4, **WATCHED).wants(Start(4)).start().drop()
    for step in (1, 2):
        script.wait(50.0).report(0, 0.5, step=step, step_time_s=50.0).drop()
    script.saved(0, 2).drop().decides(Resize(0, 1)).report(0, 0.5, step_time_s=50.0).drop()
    script.exited(0, saved=3).drop().released("d0", "d1", "d2", "d3").drop()
    assert (script.trial(0).atoms, script.trial(0).state) == (1, S.STARTING)
    assert silent_for(script, 990.0) == [], "five steps of 200 s"
    assert silent_for(script, 20.0) == [Kill(0, 2, 5.0, stacks=True)]


@pytest.mark.parametrize("stride", [1, 100], ids=["every step", "every 100th step"])
def test_the_first_report_of_a_new_trial_may_take_four_times_as_long_as_others(stride: int) -> None:
    """A larger model was killed in its first epoch, as often as it was launched; so was each but the first trials
    where a report stands for iterations that take ten minutes together."""
    script = Script(devices=2, **{**WATCHED, "deadline_s": 80_000.0}).wants(Start(1), Start(1))
    script.start().drop()
    for step in (stride, 2 * stride):
        script.wait(300.0).report(0, 0.5, step=step, step_time_s=300.0 / stride).drop()
    script.exited(0, "failed").drop()
    assert silent_for(script, 5900.0) == []
    assert silent_for(script, 200.0) == [Kill(1, 1, 5.0, stacks=True)]


def test_who_hangs_on_more_atoms_goes_back_to_fewer() -> None:
    script = stages.waiting(**WATCHED).released("d0").drop()
    assert script.trial(0).atoms == 2
    assert silent_for(script, 130.0) == [Kill(0, 2, 5.0, stacks=True)]
    script.exited(0, "killed", error="rank 1 is stuck").drop().released("d0", "d1")
    script.expect(launch(0, 3, "d0"))
    assert "goes back to 1 and grows no more: no report for" in script.trial(0).cap.why


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
    assert script.take() == [], "the machine slept"
    assert silent_for(script, 55.0) == []
    script.wait(3600.0)
    script.feed(DaemonResumed(at=script.now, epoch=2)).drop()
    # Nothing entered after a night without power: a trial seemed to have trained for that long.
    assert script.state.longest_training_s < 100.0
    assert silent_for(script, 55.0) == [], "a new daemon listens for a while first"
    assert silent_for(script, 20.0) == [KILL_HUNG]


def test_who_hangs_while_it_yields_is_killed_too() -> None:
    script = stages.pausing(**WATCHED)
    assert silent_for(script, 75.0) == [KILL_HUNG]
    script.wants(Start(1)).exited(0, "killed").expect(ConfirmRelease(("d0",)), launch(1, 1, "d1"))
    assert script.trial(0).state is S.PAUSED


def test_who_waits_for_devices_is_not_silent_and_the_watch_ends_with_the_search() -> None:
    script = stages.waiting(**WATCHED)
    assert silent_for(script, 500.0) == []
    stages.running(**WATCHED).asked("stop").drop().wait(200.0).timer("watch").expect_nothing()

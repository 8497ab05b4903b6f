"""A trial's life without accidents: start, report, pause, resume, resize, stop, complete, and the end of it all."""

from __future__ import annotations

import pytest

from gpusched.core.commands import ConfirmRelease, Save, Yield
from gpusched.core.decisions import Pause, Resize, Resume, Start, Stop, WakeAt
from gpusched.core.events import DaemonResumed
from gpusched.core.trial import TrialState
from tests.core import stages
from tests.helpers import Finish, Script, SetTimer, launch

S = TrialState


# ---------------------------------------------------------------- start


def test_the_beginning_sets_the_deadline_and_fills_every_atom() -> None:
    script = Script(devices=2, deadline_s=60.0).wants(Start(1), Start(1), Start(1)).start()
    script.expect(SetTimer("deadline", 60.0), launch(0, 1, "d0"), launch(1, 1, "d1"))
    assert [t.state for t in script.state.trials.values()] == [S.STARTING, S.STARTING]
    assert script.state.atoms_free == 0


def test_a_start_that_does_not_fit_is_dropped() -> None:
    script = Script(devices=2).wants(Start(1), Start(2)).start()
    script.expect(SetTimer("deadline", 1000.0), launch(0, 1, "d0"))


def test_a_start_is_rounded_to_an_allowed_size() -> None:
    script = Script(devices=5, sizes=(2, 4), max_atoms=3)
    script.wants(Start(1), Start(4), Start(2)).start()
    script.expect(SetTimer("deadline", 1000.0), launch(0, 1, "d0", "d1"), launch(1, 1, "d2", "d3"))
    assert list(script.policy.capacity) == [Start(2)], "nobody is asked about an atom too few"


# ---------------------------------------------------------------- report


def test_a_report_that_changes_nothing_returns_nothing() -> None:
    script = stages.running().wait(1.0).report(0, 0.4)
    script.expect_nothing()
    trial = script.trial(0)
    assert (trial.step, trial.seq, trial.metric, trial.score) == (2, 2, 0.4, 0.4)
    assert list(trial.curve) == [(1, 0.5), (2, 0.4)]


def test_the_first_report_says_that_it_is_up() -> None:
    script = stages.starting().wait(3.0).report(0, 0.5).expect(Save(0, 1))
    assert script.trial(0).state is S.RUNNING
    assert script.trial(0).up_at == 3.0
    script.up(0).expect_nothing()
    assert script.trial(0).up_at == 3.0


def test_a_report_that_was_seen_before_is_ignored() -> None:
    script = stages.running().report(0, 0.9, seq=1, step=5).expect_nothing()
    assert script.trial(0).step == 1
    assert script.policy.reports == [0]


# ---------------------------------------------------------------- pause and resume


def test_pause_and_resume() -> None:
    script = stages.running().decides(Pause(0, "no good")).wait(1.0).report(0, 0.4)
    script.expect(Yield(0, 1, save=True))
    assert script.trial(0).state is S.YIELDING
    script.exited(0, saved=2).expect(ConfirmRelease(("d0",)))
    assert script.policy.exits == [(0, S.PAUSED)]
    assert script.device("d0") == "draining"
    script.wants(Start(1)).released("d0").expect(launch(1, 1, "d0"))
    script.wants(Resume(0, 1)).wait(1.0).report(1, 0.1, step=1).expect(launch(0, 2, "d1"))
    assert script.trial(0).state is S.STARTING
    script.wait(1.0).up(0).expect_nothing()
    script.report(0, 0.45).expect_nothing()
    assert (script.trial(0).step, script.trial(0).seq) == (3, 3)
    assert script.trial(0).past_training_s == 2.0


def test_pausing_a_paused_trial_is_no_progress() -> None:
    # A policy that says so whenever atoms are free would otherwise be asked for ever.
    script = stages.paused().wants(Pause(0), Start(1)).wait(1.0).up(1).expect_nothing()
    assert len(script.policy.capacity) == 1


# ---------------------------------------------------------------- resize


def test_growing_reserves_first_and_launches_when_the_old_devices_are_released() -> None:
    script = stages.running().decides(Resize(0, 2, "grows")).wait(1.0).report(0, 0.4)
    script.expect(Yield(0, 1, save=True))
    assert script.trial(0).reserved == ("d1",)
    assert (script.device("d0"), script.device("d1")) == ("held", "held")
    script.exited(0, saved=2).expect(ConfirmRelease(("d0",)))
    assert script.trial(0).state is S.STARTING
    assert script.trial(0).devices == ("d0", "d1")
    assert script.policy.exits == []
    script.wait(2.0).released("d0").expect(launch(0, 2, "d0", "d1"))
    script.wait(9.0).report(0, 0.6).expect(Save(0, 2))
    assert script.trial(0).steps_since_launch == 1


def test_a_report_on_the_way_out_is_not_judged() -> None:
    script = stages.resizing().decides(Pause(0)).wait(1.0).report(0, 0.6).expect_nothing()
    assert script.trial(0).is_resizing
    assert script.policy.reports == [0, 0]
    script.policy.on_next_report.clear()


@pytest.mark.parametrize("atoms", [1, 3], ids=["the size it has", "more than are free"])
def test_a_resize_that_cannot_be_is_dropped(atoms: int) -> None:
    script = stages.running().decides(Resize(0, atoms)).report(0, 0.4).expect_nothing()
    assert script.trial(0).state is S.RUNNING


def test_what_a_resize_measures() -> None:
    script = stages.starting(scaling="auto").wait(2.0).report(0, 0.5, step_time_s=1.5).drop()
    assert script.state.speed.overhead_s == 0.5, "decision to first report, less its step"
    script.wait(1.0).decides(Resize(0, 2)).report(0, 0.4, step_time_s=1.0).drop()
    script.wait(0.5).exited(0, saved=2).drop().wait(1.0).released("d0").drop()
    script.wait(2.5).report(0, 0.4, step_time_s=0.5).drop()
    assert script.state.speed.overhead_s == 1.0, "of the launch, less a later step"
    script.wait(0.5).report(0, 0.4, step_time_s=0.5).drop()
    before = script.state.speed.s(2)
    assert before <= 2.0
    # The second step after the resize was one measurement of s(2): twice as fast.
    for _ in range(8):
        script.state.speed.saw_resize(1, 1.0, 2, 0.5)
    assert script.state.speed.s(2) == pytest.approx(2.0)


def test_a_launch_that_spans_a_change_of_daemons_is_not_measured() -> None:
    script = stages.starting().wait(500.0)
    script.feed(DaemonResumed(at=script.now, epoch=2)).expect_nothing()
    script.report(0, 0.5).drop()
    assert script.state.speed.overhead_s is None
    assert script.state.speed.step_on_one_atom_s == 1.0


# ---------------------------------------------------------------- stop and complete


def test_a_paused_trial_is_stopped_at_once_and_the_policy_is_told() -> None:
    script = stages.paused()
    script.policy.exits.clear()
    script.decides(Stop(0, "no hope")).report(1, 0.1).expect_nothing()
    assert script.trial(0).state is S.STOPPED
    assert script.policy.exits == [(0, S.STOPPED)]


def test_a_policy_may_act_on_other_trials_than_the_one_that_reports() -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().saved(0, 1).drop().report(1, 0.4).drop()
    script.decides(Stop(1), Pause(0)).report(0, 0.3)
    script.expect(Yield(1, 1, save=False), Yield(0, 1, save=True))


# ---------------------------------------------------------------- timers


def test_a_policy_is_woken_when_it_asked_to_be() -> None:
    script = stages.running().decides(WakeAt(30.0)).report(0, 0.4).expect(SetTimer("wake", 30.0))
    assert script.state.timers == {"deadline": 1000.0, "wake": 30.0}
    script.policy.on_next_wake.append(Pause(0))
    script.wait(28.0).timer("wake").expect(Yield(0, 1, save=True))
    assert script.state.timers == {"deadline": 1000.0}


# ---------------------------------------------------------------- the end


def test_an_experiment_without_configurations_is_over_at_once() -> None:
    script = Script(draw=lambda n: None).wants(Start(1)).start()
    script.expect(SetTimer("deadline", 1000.0), Finish("nothing left to run"))


def test_a_policy_that_wants_to_be_woken_keeps_it_alive() -> None:
    script = stages.completing(max_trials=1).wants(WakeAt(50.0)).exited(0).drop()
    script.released("d0").expect_nothing()
    script.wait(47.0).timer("wake").expect(Finish("nothing left to run"))


def test_paused_trials_that_nobody_resumes_are_stopped_at_the_end() -> None:
    script = stages.pausing(max_trials=1).exited(0, saved=2).drop()
    script.released("d0").expect(Finish("nothing left to run"))
    assert script.trial(0).state is S.STOPPED
    assert script.policy.exits == [(0, S.PAUSED)], "nothing is decided any more"


def test_after_the_end_nothing_follows_from_anything() -> None:
    script = stages.completing(max_trials=1).exited(0).drop().released("d0").drop()
    script.report(0, 0.9).expect_nothing()
    script.asked("cancel").expect_nothing()
    script.timer("deadline").expect_nothing()
    script.released("d1").expect_nothing()
    assert script.trial(0).step == 2


def test_the_search_is_over_when_the_target_is_reached() -> None:
    script = Script(devices=2, target=0.9).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.89).drop().saved(0, 1).drop().report(1, 0.5).drop()
    yields = [command for command in script.report(0, 0.9).take() if isinstance(command, Yield)]
    assert yields == [Yield(0, 1, save=True), Yield(1, 1, save=True)]
    script.exited(0, saved=2).drop().exited(1).drop()
    assert script.state.stopping == "trial 0 reached the target 0.9"
    assert script.state.finished
    assert [t.state for t in script.state.trials.values()] == [S.COMPLETED, S.STOPPED]
    assert script.state.best.metric == 0.9


def test_a_trial_that_leaves_and_reaches_the_target_at_its_last_report_ends_the_search() -> None:
    script = Script(target=0.9).wants(Start(1)).start().drop().report(0, 0.5).drop()
    script.asked("pause", 0).drop().report(0, 0.95).drop()
    assert script.state.stopping == "trial 0 reached the target 0.9"
    script.exited(0, saved=2).drop()
    assert (script.trial(0).state, script.state.best.metric) == (S.COMPLETED, 0.95)


def test_in_mode_min_the_target_is_reached_from_above() -> None:
    script = Script(mode="min", target=0.1).wants(Start(1)).start().drop()
    assert script.report(0, 0.2).drop().state.stopping is None
    assert script.report(0, 0.1).state.stopping == "trial 0 reached the target 0.1"


# ---------------------------------------------------------------- nothing but NaN


def test_a_search_without_one_finite_metric_ends() -> None:
    """Such a search burnt its whole deadline, and even grew."""
    script = Script(devices=2, max_failures=2).wants(Start(1), Start(1)).start().drop()
    for trial in (0, 0, 0, 1, 1):
        script.report(trial, None).drop()
    assert script.state.stopping is None
    script.report(1, None).drop()
    assert "no finite metric after 2 trials: NaN or infinite in" in script.state.stopping


def test_trials_that_fail_and_trials_that_report_nan_count_together() -> None:
    script = Script(devices=1, max_failures=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, None).drop().exited(0, "finished").drop().released("d0").drop()
    script.exited(1, "failed").drop()
    assert "no finite metric after 2 trials" in script.state.stopping


def test_one_finite_report_keeps_a_search_of_nan_going() -> None:
    script = Script(devices=1, max_failures=1).wants(Start(1)).start().drop().report(0, 0.5).drop()
    for _ in range(5):
        script.report(0, None).drop()
    assert script.state.stopping is None

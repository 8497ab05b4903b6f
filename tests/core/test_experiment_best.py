"""The best model: only what is on disk, never a NaN, in both modes, and saving that does not eat the training."""

from __future__ import annotations

import pytest

from gpusched.core.commands import ConfirmRelease, KeepBest, Save, Yield
from gpusched.core.decisions import Pause, Start
from gpusched.core.trial import NEVER
from tests.core import stages
from tests.helpers import Script


@pytest.mark.parametrize(
    ("mode", "good", "better", "worse"), [("max", 0.5, 0.6, 0.4), ("min", 0.5, 0.4, 0.6)]
)
def test_a_better_step_is_saved_and_kept_once_it_is_on_disk(
    mode: str, good: float, better: float, worse: float
) -> None:
    script = stages.starting(mode=mode).report(0, good).expect(Save(0, 1))
    assert script.state.best is None, "it is not on disk yet"
    script.saved(0, 1, save_s=0.0).expect(KeepBest(0, 1, good, 1))
    script.report(0, worse).expect_nothing()
    script.report(0, better).expect(Save(0, 1))
    assert script.state.best.step == 1
    script.saved(0, 3, save_s=0.0).expect(KeepBest(0, 3, better, 1))
    best = script.state.best
    assert (best.trial, best.step, best.metric, best.atoms) == (0, 3, better, 1)


def test_an_equal_step_is_not_better() -> None:
    stages.running().wait(100.0).report(0, 0.5).expect_nothing()


def test_a_checkpoint_of_a_step_that_was_never_reported_is_not_kept() -> None:
    script = stages.running().saved(0, 7).expect_nothing()
    assert script.trial(0).saved_step == 7


def test_the_atoms_of_the_best_model_are_those_it_was_trained_on() -> None:
    """The device of the trial is lost here before the checkpoint is on disk."""
    script = stages.starting().report(0, 0.5).drop().quarantined("d0").drop()
    script.saved(0, 1).expect(KeepBest(0, 1, 0.5, 1))
    assert (script.trial(0).atoms, script.state.best.atoms) == (0, 1)


def test_a_metric_that_is_not_finite_is_never_kept() -> None:
    script = stages.starting().report(0, None).expect_nothing().saved(0, 1).expect_nothing()
    trial = script.trial(0)
    assert (trial.score, trial.best_score, trial.metric) == (NEVER, NEVER, None)
    script.decides(Pause(0)).report(0, None).expect(Yield(0, 1, save=True))
    script.wants(Start(1)).exited(0, saved=2).drop()
    assert script.state.best is None


def test_a_checkpoint_of_an_earlier_step_keeps_the_metric_of_that_step() -> None:
    script = stages.starting().report(0, 0.8).drop().report(0, 0.3).drop()
    script.saved(0, 1).expect(KeepBest(0, 1, 0.8, 1))


def test_a_step_done_again_after_a_relaunch_counts_as_reported_last() -> None:
    script = stages.running().report(0, 0.9).drop().exited(0, "lost").drop()
    script.released("d0").drop().report(0, 0.7, step=2).drop()
    script.saved(0, 2).expect(KeepBest(0, 2, 0.7, 1))


def test_the_best_of_two_trials() -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().saved(0, 1).expect(KeepBest(0, 1, 0.5, 1))
    script.report(1, 0.4).expect_nothing()
    script.wait(10.0)
    script.report(1, 0.7).expect(Save(1, 1)).report(0, 0.6).expect(Save(0, 1))
    script.saved(1, 2).expect(KeepBest(1, 2, 0.7, 1)).saved(0, 2).expect_nothing()


def test_saving_costs_at_most_its_share_of_the_time() -> None:
    script = stages.starting(save_share=0.05).report(0, 0.5).expect(Save(0, 1))
    script.wait(1.0).saved(0, 1, save_s=1.0).drop()  # the next one not before 20 s are over
    script.wait(19.9).report(0, 0.6).expect(Save(0, 1, hold=True))
    script.wait(0.1).report(0, 0.59).expect(Save(0, 1))


def test_one_live_trial_holds_the_best_model_that_may_not_be_saved_yet() -> None:
    """Every trial that was better than the best checkpoint held a copy, at every step."""
    script = Script(devices=2, best_every_s=1e9).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().saved(0, 1).drop()
    script.report(1, 0.7).expect(Save(1, 1, hold=True))
    script.report(0, 0.6).expect_nothing().report(0, 0.7).expect_nothing()
    script.report(0, 0.8).expect(Save(0, 1, hold=True))
    script.report(1, 0.75).expect_nothing()
    script.exited(0, "lost").drop()
    script.report(1, 0.76).expect(Save(1, 1, hold=True))


def test_the_best_report_without_a_checkpoint_is_known() -> None:
    script = stages.starting(save_share=0.05, best_every_s=2.0).report(0, 0.5).drop()
    assert script.state.best_unsaved is script.trial(0)
    script.saved(0, 1, save_s=0.01).drop()
    assert script.state.best_unsaved is None
    script.wait(1.0).report(0, 0.6).expect(Save(0, 1, hold=True))
    script.wait(1.0).report(0, 0.7).expect(Save(0, 1)).saved(0, 3, save_s=1.0).drop()
    assert script.state.best_unsaved is None
    script.wait(10.0).report(0, 0.9).expect(Save(0, 1, hold=True)).report(0, 0.8).expect_nothing()
    assert script.state.best_unsaved is script.trial(0)
    assert script.trial(0).best_step == 4


def test_a_trial_that_leaves_saves_its_best_whatever_it_costs() -> None:
    script = stages.starting().report(0, 0.5).drop().saved(0, 1, save_s=100.0).drop()
    script.decides(Pause(0)).report(0, 0.6).expect(Yield(0, 1, save=True))
    script.exited(0, saved=2).expect(KeepBest(0, 2, 0.6, 1), ConfirmRelease(("d0",)))


def test_the_best_model_is_replaced_once_a_second_at_most_while_its_trial_trains_on() -> None:
    script = stages.starting(best_every_s=20.0).report(0, 0.1).expect(Save(0, 1))
    script.saved(0, 1, save_s=0.0).drop().wait(5.0)
    script.report(0, 0.2).expect(Save(0, 1, hold=True))
    script.wait(20.0)
    script.report(0, 0.3).expect(Save(0, 1))


def test_a_running_trial_is_saved_every_so_often_though_it_is_not_the_best() -> None:
    script = stages.running(save_every_s=100.0).wait(60.0).report(0, 0.1).expect_nothing()
    script.wait(60.0).report(0, 0.1).expect(Save(0, 1))
    script.saved(0, 3, save_s=6.0).wait(150.0).report(0, 0.1).expect_nothing()
    script.wait(60.0).report(0, 0.1).expect(Save(0, 1))


def test_a_save_that_is_refused_is_asked_for_again_after_as_long() -> None:
    script = stages.running(save_every_s=100.0)
    found = [s for s in range(10, 361, 10) if Save(0, 1) in script.wait(10.0).report(0, 0.1).take()]
    assert found == [100, 200, 300]


def test_where_it_is_off_only_the_best_is_saved() -> None:
    stages.running(save_every_s=None).wait(900.0).report(0, 0.1).expect_nothing()

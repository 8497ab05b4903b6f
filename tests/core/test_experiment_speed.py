"""Step times of a search: what the first step of a launch counts for, and a growth that made a trial slower."""

from __future__ import annotations

import pytest

from gpusched.core.commands import Yield
from gpusched.core.decisions import Pause, Resize, Resume, Start
from gpusched.core.events import TrialUp
from gpusched.core.trial import TrialState
from tests.helpers import Script


def test_the_first_step_of_a_launch_is_no_usual_step() -> None:
    """The first takes 1.3 to 2 times as long: Ta and the trial's step time are of the others, its rest is To."""
    script = Script(devices=2).wants(Start(1)).start().drop()
    script.wait(3.0).report(0, 0.1, step_time_s=2.0).drop()
    speed = script.state.speed
    assert (speed.step_on_one_atom_s, script.trial(0).step_time_s) == (2.0, 2.0), "all there is"
    assert speed.overhead_s == 1.0, "no less than that"
    script.wait(1.0).report(0, 0.2, step_time_s=1.0).drop()
    assert (speed.step_on_one_atom_s, script.trial(0).step_time_s) == (1.0, 1.0)
    assert speed.overhead_s == 2.0, "3 s less a usual step"
    script.asked("pause", 0).drop().report(0, 0.3, step_time_s=1.0).drop().exited(0, saved=3).drop()
    script.released("d0").drop().asked("unpause", 0).drop()
    script.wait(4.0).report(0, 0.3, step_time_s=2.0).drop()
    assert speed.overhead_s == 2.0, "of the first launch, the lower one of two"
    script.asked("pause", 0).drop().report(0, 0.3, step_time_s=1.0).drop().exited(0, saved=5).drop()
    script.released("d0").drop().asked("unpause", 0).drop()
    script.wait(4.0).report(0, 0.3, step_time_s=2.0).drop()
    assert speed.overhead_s == 3.0, "4 s less a usual step"
    assert speed.step_on_one_atom_s == 1.0


def test_a_step_counts_as_if_it_ran_on_one_atom_and_no_overhead_is_negative() -> None:
    script = Script(devices=4).wants(Start(4)).start().drop()
    assert (script.state.speed.step_on_one_atom_s, script.state.overhead_s) == (None, 0.0)
    for _ in range(2):
        script.wait(1.0).report(0, 0.1, step_time_s=5.0).drop()
        assert (script.state.speed.step_on_one_atom_s, script.state.overhead_s) == (20.0, 0.0)


def test_a_report_of_several_steps_is_not_several_times_as_slow_a_step() -> None:
    script = Script(devices=1).wants(Start(1)).start().drop()
    for n in (1, 2, 3):
        script.wait(10.0).report(0, 0.1, step=10 * n, step_time_s=1.0).drop()
    trial = script.trial(0)
    assert (trial.step_time_s, trial.stride, trial.report_s) == (1.0, 10, 10.0)
    assert script.state.speed.step_on_one_atom_s == 1.0


def test_a_trial_that_was_paused_and_is_slower_on_more_atoms_goes_back() -> None:
    script = Script(devices=4).wants(Start(1)).start().drop()
    for _ in range(2):
        script.wait(1.0).report(0, 0.1, step_time_s=1.0).drop()
    script.decides(Pause(0)).wait(1.0).report(0, 0.1, step_time_s=1.0).drop()
    script.exited(0, saved=3).drop().wants(Resume(0, 4)).released("d0").drop()
    assert script.trial(0).atoms == 4
    for _ in range(2):
        script.wait(2.0).report(0, 0.1, step_time_s=2.0).drop()
    script.decides(Resize(0, 3)).wait(2.0).report(0, 0.1, step_time_s=2.0).drop()
    assert (script.trial(0).cap.atoms, script.trial(0).after.atoms) == (1, 1)


@pytest.mark.parametrize(
    ("steps_s", "is_back"),
    [((0.6,), False), ((1.05,), False), ((1.3, 1.3), True), ((9.0, 0.6), False)],
)
def test_a_growth_that_slows_is_taken_back(steps_s: tuple[float, ...], is_back: bool) -> None:
    """A script that evaluates every fifth epoch lost its growth for good where that was the second one after it."""
    script = Script(devices=2, scaling="auto").wants(Start(1)).start().drop()
    script.wait(1.0).report(0, 0.1, step_time_s=1.0).drop()
    script.decides(Resize(0, 2)).wait(1.0).report(0, 0.1, step_time_s=1.0).drop()
    script.exited(0, saved=2).drop().released("d0").drop()
    script.wait(2.0).report(0, 0.05, step_time_s=3.0).expect_nothing()
    commands = []
    for step_s in steps_s:
        assert Yield(0, 2, save=True) not in commands
        commands += script.wait(step_s).report(0, 0.05, step_time_s=step_s).take()
    assert (Yield(0, 2, save=True) in commands) == is_back
    if is_back:
        assert "its steps take longer on 2 atoms: goes back to 1" in str(script.trial(0).story)
        script.exited(0, saved=5).drop().released("d0", "d1").drop()
        assert script.trial(0).atoms == 1
        script.decides(Resize(0, 2)).report(0, 0.3).drop()
        assert script.trial(0).state is TrialState.RUNNING, "it grows no more"


def test_one_short_step_before_a_growth_does_not_undo_it() -> None:
    """Where steps are as long as an episode, or a batch, the growth was taken back for good."""
    script = Script(devices=2, scaling="auto").wants(Start(1)).start().drop()
    for step_s in (1.0, 1.2, 0.9):
        script.wait(step_s).report(0, 0.1, step_time_s=step_s).drop()
    script.decides(Resize(0, 2)).wait(0.4).report(0, 0.1, step_time_s=0.4).drop()
    script.exited(0, saved=4).drop().released("d0").drop()
    for step_s in (3.0, 0.6, 0.5):
        script.wait(step_s).report(0, 0.1, step_time_s=step_s).drop()
    assert script.trial(0).cap is None


def test_what_a_launch_waits_for_the_server_s_imports_is_no_overhead() -> None:
    """Of the first launches; else no step was thought to fit into the last third of a short search."""
    script = Script(devices=1).wants(Start(1)).start().drop()
    script.wait(15.0).feed(TrialUp(at=script.now, trial=0, incarnation=1, waited_s=14.0)).drop()
    script.wait(2.0).report(0, 0.1, step_time_s=2.0).drop()
    assert script.state.speed.overhead_s == 1.0

"""A search goes on after its end: which trials come back, on how many atoms, and what it ends at next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpusched.core.commands import ConfirmRelease, Launch, Yield
from gpusched.core.decisions import NO_STEP_FITS, Resume, Start, Stop, WakeAt
from gpusched.core.events import DevicesJoined, LimitsMoved
from gpusched.core.trial import TrialState
from tests.core import stages
from tests.helpers import Finish, Script, SetTimer, launch

S = TrialState


def over(script: Script) -> Script:
    """Trial 0 leaves with a checkpoint of its newest step, and its device is clean."""
    trial = script.trial(0)
    if trial.has_processes:
        script.exited(0, saved=trial.step).drop()
    while script.state.devices.draining:
        slots = script.state.devices.slots.values()
        script.released(next(slot.id for slot in slots if slot.state.value == "draining")).drop()
    assert script.state.finished
    return script


ENDS: dict[str, Callable[[Script], Script]] = {
    "deadline": lambda script: script.timer("deadline").drop(),
    "stop": lambda script: script.asked("stop").drop(),
    "Ctrl-C twice": lambda script: script.asked("stop").drop().asked("cancel").drop(),
    "target": lambda script: script.report(0, 0.95).drop(),
    "no time for a step": lambda script: (
        script.decides(Stop(0, f"leaves: {NO_STEP_FITS}")).report(0, 0.3).drop()
    ),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_trial_that_the_end_stopped_goes_on_from_its_checkpoint(end: str) -> None:
    script = over(ENDS[end](stages.running(target=0.9)))
    step = script.trial(0).step
    assert script.trial(0).is_final
    script.wait(5.0).reopened(target=None)
    script.expect(SetTimer("deadline", 2000.0), Launch(0, 2, ("d0",), {"n": 0}))
    assert script.trial(0).state is S.STARTING
    assert (script.trial(0).step, script.trial(0).saved_step) == (step, step)
    assert script.state.stopping is None
    assert script.policy.exits[-1] == (0, S.PAUSED)


@pytest.mark.parametrize("has_left", [True, False])
def test_more_time_in_time_brings_back_who_left_for_want_of_it(has_left: bool) -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().saved(0, 1, save_s=20.0).drop().report(1, 0.4).drop()
    script.decides(Stop(0, f"leaves: {NO_STEP_FITS}")).report(0, 0.3)
    script.expect(Yield(0, 1, save=True))
    if has_left:
        script.exited(0, saved=2).drop().released("d0").drop()
        assert script.trial(0).state is S.STOPPED
    script.feed(LimitsMoved(at=script.now, deadline_s=900.0)).drop()
    assert script.trial(0).is_live is not has_left, "less time brings nobody back"
    script.feed(LimitsMoved(at=script.now, deadline_s=5000.0))
    if not has_left:
        script.drop().exited(0, saved=2).drop().released("d0")
        script.expect(launch(0, 2, "d0"))
    else:
        script.expect(SetTimer("deadline", 5000.0), launch(0, 2, "d0"))
    assert (script.trial(0).state, script.trial(0).saved_step) == (S.STARTING, 2)


def test_more_time_twice_while_no_atom_is_free_is_as_good_as_once() -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().saved(0, 1).drop().report(1, 0.4).drop()
    script.decides(Stop(0, f"leaves: {NO_STEP_FITS}")).report(0, 0.6).drop().exited(
        0, saved=2
    ).drop()
    for deadline_s in (5000.0, 6000.0):  # d0 is not released yet
        script.feed(LimitsMoved(at=script.now, deadline_s=deadline_s)).drop()
        assert script.trial(0).state is S.PAUSED
    script.released("d0").expect(launch(0, 2, "d0"))


def test_it_comes_back_on_as_many_atoms_as_it_had() -> None:
    script = Script(devices=4).wants(Start(3)).start().drop().report(0).drop()
    over(script.timer("deadline").drop()).reopened()
    script.expect(SetTimer("deadline", 2000.0), launch(0, 2, "d0", "d1", "d2"))
    script = Script(devices=4).wants(Start(3)).start().drop().report(0).drop()
    over(script.timer("deadline").drop()).quarantined("d0").quarantined("d1").reopened()
    script.expect(SetTimer("deadline", 2000.0), launch(0, 2, "d2", "d3"))


def test_devices_that_come_back_or_join_after_the_end_are_used_when_it_goes_on() -> None:
    """A cluster that gave other nodes to the continued search left it without any."""
    script = over(stages.running().timer("deadline").drop())
    script.quarantined("d0").readmitted("d0").quarantined("d1")
    script.feed(DevicesJoined(at=script.now, devices=("e0",))).expect_nothing()
    script.wants(Start(1)).reopened()
    script.expect(SetTimer("deadline", 2000.0), launch(0, 2, "d0"), launch(1, 1, "e0"))


def test_a_paused_trial_is_paused_again_and_the_policy_decides() -> None:
    script = stages.paused().asked("stop").drop().exited(1).drop().released("d1").drop()
    assert script.trial(0).state is S.STOPPED
    script.wants(Resume(0)).reopened()  # trial 1 was live: it comes first
    script.expect(SetTimer("deadline", 2000.0), launch(1, 2, "d0"), launch(0, 2, "d1"))
    script = stages.paused().asked("pause", 0).drop()
    script.report(1).drop().asked("stop").drop().exited(1, saved=2).drop()
    script.wants(Resume(0)).reopened(checkpoints={0: 2})
    assert script.trial(0).state is S.PAUSED, "a person has paused it"
    assert script.trial(1).state is S.STOPPED, "its checkpoint was removed"


def test_a_trial_whose_checkpoints_were_removed_stays_over_and_the_policy_is_told_so() -> None:
    script = stages.up().report(0).drop().saved(0, 1).drop()
    script.timer("deadline").drop().exited(0, "killed").drop()
    assert script.policy.exits == []
    script.wants(Start(1)).reopened(checkpoints={7: 1})
    script.expect(SetTimer("deadline", 2000.0), launch(1, 1, "d1"))
    assert script.policy.exits == [(0, S.STOPPED)]
    script.report(1).drop().saved(1, 1).drop().asked("stop").drop().exited(1, "killed").drop()
    script.reopened(checkpoints={7: 1}).take()
    assert script.policy.exits == [(0, S.STOPPED), (1, S.STOPPED)], "nobody is told twice"


@pytest.mark.parametrize(
    "until",
    [
        lambda: stages.up().asked("stop").drop(),
        lambda: stages.starting().asked("stop").drop().report(0).drop(),
        lambda: stages.up().report(0).drop().asked("stop").drop().timer("last call").drop(),
    ],
    ids=["not begun", "killed as it began", "killed before its second report"],
)
def test_a_trial_that_had_saved_nothing_begins_again(until: Callable[[], Script]) -> None:
    """A trial that reports in the 0.1 s until it is killed continues as well."""
    script = until().exited(0, "killed").drop().released("d0").drop()
    assert script.trial(0).state is S.STOPPED
    script.reopened(checkpoints={7: 1})
    script.expect(SetTimer("deadline", 2000.0), launch(0, 2, "d0"))
    assert script.trial(0).saved_step == 0


@pytest.mark.parametrize("stage", ["stopped", "completed", "failed"])
def test_a_trial_that_was_over_before_stays_so(stage: str) -> None:
    script = stages.STAGES[stage]()
    state = script.trial(0).state
    script = script if script.state.finished else script.asked("stop").drop()
    for trial in list(script.state.live.values()):
        script.exited(trial.id).drop()
    script.wants(Start(1)).reopened(checkpoints={0: 1}).take()
    assert script.trial(0).state is state


def test_a_trial_told_to_pause_when_the_end_came_waits_for_the_policy() -> None:
    script = over(stages.pausing().timer("deadline").drop()).wants(Start(1)).reopened().drop()
    assert script.trial(0).state is S.PAUSED
    assert script.state.wanted == []


def test_a_script_that_ended_by_itself_meanwhile_is_complete() -> None:
    script = stages.running().asked("stop").drop().exited(0, "finished").drop()
    script.wants(Start(1)).reopened().take()
    assert script.trial(0).state is S.COMPLETED


def test_nothing_to_go_on_with_is_over_again() -> None:
    script = Script(draw=lambda n: {"n": n} if n == 0 else None).wants(Start(1)).start().drop()
    script.report(0).drop().exited(0, "finished").drop().released("d0").drop().reopened()
    script.expect(SetTimer("deadline", 2000.0), Finish("nothing left to run"))


def test_more_trials_may_be_started_than_before() -> None:
    script = Script(max_trials=1).wants(Start(1)).start().drop()
    script.report(0).drop().exited(0, "finished").drop().released("d0").drop()
    script.wants(Start(1)).reopened(max_trials=2)
    script.expect(SetTimer("deadline", 2000.0), launch(1, 1, "d0"))


def test_failures_count_from_the_beginning_again() -> None:
    script = Script(max_failures=1).wants(Start(1)).start().drop().exited(0, "failed").drop()
    assert script.state.stopping == "the first 1 trials failed"
    script.released("d0").drop().wants(Start(1), Start(1)).reopened().drop()
    script.exited(1, "failed").expect(ConfirmRelease(("d0",)), Finish("the first 1 trials failed"))


def test_the_policy_is_woken_as_the_search_goes_on() -> None:
    script = over(stages.running().asked("stop").drop())
    script.policy.on_next_wake.append(WakeAt(60.0))
    script.reopened().drop()
    assert script.state.timers == {"deadline": 2000.0, "wake": 60.0}


def test_limits_may_be_changed_before_the_end_too() -> None:
    script = stages.running().reopened(target=0.7, max_trials=5)
    script.expect(SetTimer("deadline", 2000.0))
    assert (script.state.rules.target, script.state.rules.max_trials) == (0.7, 5)
    assert script.trial(0).state is S.RUNNING
    script.asked("stop").drop().reopened(3000.0).expect_nothing()
    assert script.state.stopping == "stopped by the user", "its trials are leaving still"
    assert script.state.rules.deadline_s == 2000.0

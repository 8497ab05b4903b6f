"""How a trial may end, in every stage: what it becomes, what follows, and when it is given up."""

from __future__ import annotations

import pytest

from gpusched.core.commands import ConfirmRelease, Kill
from gpusched.core.decisions import Resize, Start
from gpusched.core.events import Outcome, StorageChanged, Verb
from gpusched.core.exits import MOST_RETRIES
from gpusched.core.state import ALIKE_PAUSE_S, MOST_ALIKE
from gpusched.core.trial import TrialState
from gpusched.protocol import OUT_OF_GPU_MEMORY
from tests.core import stages
from tests.helpers import Finish, Script, SetTimer, launch

S = TrialState
OUTCOMES: tuple[Outcome, ...] = ("yielded", "finished", "failed", "killed", "lost")

#: stage -> the state after each outcome, in the order of OUTCOMES.
BECOMES = {
    "starting": (S.STARTING, S.FAILED, S.FAILED, S.STARTING, S.STARTING),
    "up": (S.STARTING, S.FAILED, S.FAILED, S.STARTING, S.STARTING),
    "running": (S.STARTING, S.COMPLETED, S.STARTING, S.STARTING, S.STARTING),
    "resizing": (S.STARTING, S.COMPLETED, S.STARTING, S.STARTING, S.STARTING),
    "pausing": (S.PAUSED, S.COMPLETED, S.PAUSED, S.PAUSED, S.PAUSED),
    "stopping": (S.STOPPED, S.COMPLETED, S.STOPPED, S.STOPPED, S.STOPPED),
    "completing": (S.COMPLETED,) * 5,
    # Told to die: whatever it says of its end, it was killed.
    "killed_while_starting": (S.PAUSED,) * 5,
}
CELLS = [
    (stage, outcome, end)
    for stage, ends in BECOMES.items()
    for outcome, end in zip(OUTCOMES, ends, strict=True)
]


@pytest.mark.parametrize(("stage", "outcome", "end"), CELLS)
def test_what_a_trial_becomes(stage: str, outcome: Outcome, end: TrialState) -> None:
    script = stages.STAGES[stage]().wants(Start(1))
    script.policy.exits.clear()
    script.exited(0, outcome)
    assert script.trial(0).state is end
    used, free = ("d0",), "d0" if stage == "resizing" and end is S.STARTING else "d1"
    if stage == "resizing" and end is S.STARTING:
        script.expect(ConfirmRelease(used))
        script.released("d0").expect(launch(0, 2, "d0", "d1"))
    else:
        script.expect(ConfirmRelease(used), launch(1, 1, free))
        script.released("d0")
        script.expect(*([launch(0, 2, "d0")] if end is S.STARTING else []))
    told = [] if end is S.STARTING else [(0, end)]
    assert script.policy.exits == told


@pytest.mark.parametrize("stage", ["waiting", "paused", "completed", "stopped", "failed"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_exit_of_what_is_gone_already_is_ignored(stage: str, outcome: Outcome) -> None:
    script = stages.STAGES[stage]()
    before = script.trial(0).state
    script.exited(0, outcome, saved=9).expect_nothing()
    assert script.trial(0).state is before
    assert script.trial(0).saved_step != 9


# ---------------------------------------------------------------- what is left of older incarnations


@pytest.mark.parametrize("stage", list(stages.STAGES))
def test_events_of_an_older_incarnation_change_nothing(stage: str) -> None:
    script = stages.STAGES[stage]()
    old = script.trial(0).incarnation - 1
    before = (script.trial(0).state, script.trial(0).seq, script.trial(0).saved_step)
    script.up(0, incarnation=old).expect_nothing()
    script.report(0, 0.99, seq=99, step=99, incarnation=old).expect_nothing()
    script.saved(0, 99, incarnation=old).expect_nothing()
    script.exited(0, "failed", incarnation=old).expect_nothing()
    assert (script.trial(0).state, script.trial(0).seq, script.trial(0).saved_step) == before


def test_late_events_of_the_incarnation_that_left_for_a_resize_change_nothing() -> None:
    script = stages.waiting()
    script.up(0).expect_nothing()
    script.report(0, 0.99).expect_nothing()
    script.saved(0, 99).expect_nothing()
    assert script.trial(0).state is S.STARTING
    script.released("d0").expect(launch(0, 2, "d0", "d1"))


def test_events_of_trials_and_incarnations_that_never_were_change_nothing() -> None:
    script = stages.running()
    script.up(0, incarnation=2).expect_nothing()
    script.report(0, 0.9, incarnation=2).expect_nothing()
    script.report(7, 0.9, incarnation=1).expect_nothing()
    script.exited(7, "lost", incarnation=1).expect_nothing()
    script.saved(7, 1, incarnation=1).expect_nothing()


# ---------------------------------------------------------------- lost: relaunched, within a budget


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_on_a_full_disk_it_waits_for_room(outcome: Outcome) -> None:
    script = stages.running().feed(StorageChanged(at=0.0, low=True, what="full")).expect_nothing()
    script.state.last_errors.append("of another trial")
    script.exited(0, outcome, error="its shim died").drop().released("d0").expect_nothing()
    assert bool(script.state.last_errors) == (outcome == "failed"), "it breaks no row of failures"
    assert "continues when there is room on the disk" in script.trial(0).story[-1][1]
    script.feed(StorageChanged(at=script.now, low=False, what="room")).expect(launch(0, 2, "d0"))


def test_a_full_disk_keeps_no_search_alive_that_has_nothing_left() -> None:
    """The devices of such a search would be held until the deadline."""
    script = stages.running(max_trials=1)
    script.feed(StorageChanged(at=0.0, low=True, what="full")).expect_nothing()
    script.exited(0, "finished").drop().released("d0").expect(Finish("nothing left to run"))


def test_what_was_lost_goes_on_from_its_checkpoint() -> None:
    script = stages.running().report(0, 0.4).expect_nothing()
    script.wait(1.0).exited(0, "lost", error="the shim was killed").expect(ConfirmRelease(("d0",)))
    assert script.trial(0).story[-1][1].endswith("the shim was killed; continues from step 1")
    script.wait(0.5).released("d0").expect(launch(0, 2, "d0"))
    script.wait(1.0).report(0, 0.45, step=2).expect_nothing()
    trial = script.trial(0)
    assert (trial.step, trial.seq, trial.furthest_step) == (2, 3, 2)


def test_the_budget_of_relaunches_is_for_those_without_progress() -> None:
    script = stages.running(max_infrastructure_faults=2)
    for incarnation in (2, 3):
        script.exited(0, "lost").drop().released("d0").expect(launch(0, incarnation, "d0"))
    script.wants(Start(1)).exited(0, "lost").expect(ConfirmRelease(("d0",)), launch(1, 1, "d1"))
    assert script.trial(0).state is S.FAILED
    assert script.trial(0).error == "its processes vanished; 3 times without progress"


def test_a_launch_that_never_began_is_not_counted() -> None:
    script = stages.running(max_infrastructure_faults=1)
    for incarnation in range(2, 8):
        script.exited(0, "lost", error="it had not begun when the daemon ended", unbegun=True)
        script.drop().released("d0").expect(launch(0, incarnation, "d0"))
    assert script.trial(0).infrastructure_faults == 0


def test_progress_renews_the_budget() -> None:
    script = stages.running(max_infrastructure_faults=1)
    for incarnation in range(2, 6):
        script.exited(0, "lost").drop().released("d0").expect(launch(0, incarnation, "d0"))
        script.report(0, 0.4, step=incarnation).expect_nothing()
    assert script.trial(0).state is S.RUNNING


def test_repeating_old_steps_is_no_progress() -> None:
    script = stages.running(max_infrastructure_faults=1).report(0, 0.4, step=2).drop()
    script.exited(0, "lost").drop().released("d0").expect(launch(0, 2, "d0"))
    script.report(0, 0.4, step=2).expect_nothing()
    script.wants(Start(1)).exited(0, "lost").drop()
    assert script.trial(0).state is S.FAILED


# ---------------------------------------------------------------- failures


def test_the_first_failures_before_any_report_end_the_experiment() -> None:
    script = Script(devices=1, max_failures=2).wants(Start(1), Start(1), Start(1)).start().drop()
    script.exited(0, "failed", error="no such file").expect(ConfirmRelease(("d0",)))
    script.released("d0").expect(launch(1, 1, "d0"))
    script.exited(1, "finished")
    script.expect(ConfirmRelease(("d0",)), Finish("the first 2 trials failed"))
    assert script.state.stopping == "the first 2 trials failed"


def test_giving_up_stops_those_that_start() -> None:
    script = Script(devices=2, max_failures=1).wants(Start(1), Start(1)).start().drop()
    script.exited(0, "failed")
    kill = Kill(1, 1, script.rules.kill_grace_s)
    script.expect(ConfirmRelease(("d0",)), kill, SetTimer("last call", 1.5))
    script.exited(1, "killed")
    script.expect(ConfirmRelease(("d1",)), Finish("the first 1 trials failed"))


def test_failures_do_not_end_it_while_half_as_many_trials_train() -> None:
    script = Script(devices=8).wants(*[Start(1)] * 8).start().drop()
    for trial in range(8):
        script.up(trial).drop()
    for trial in range(5):
        script.exited(trial, "failed", error="out of GPU memory").drop()
    assert script.state.stopping is None, "three may yet report"
    script.exited(5, "failed").drop()
    assert script.state.stopping == "the first 6 trials failed"


@pytest.mark.parametrize(
    ("reports", "outcome", "error", "is_over"),
    [
        *((0, "failed", "SyntaxError: x", True), (1, "failed", "SyntaxError: x", True)),
        *((2, "failed", "SyntaxError: x", False), (1, "finished", None, False)),
        (0, "failed", "out of memory", False),
    ],
)
def test_after_trials_that_fail_alike_one_after_the_other_none_begins_for_a_while(
    reports: int, outcome: Outcome, error: str | None, is_over: bool
) -> None:
    """As where the script was edited: what trained well ended with the search. The fifth trial may be another."""
    script = Script(devices=2).wants(*[Start(1)] * 99).start().drop().report(0, 0.5).drop()
    for trial in range(1, MOST_ALIKE + 1):
        script.report(0, 0.5).drop()  # launched before them
        for _ in range(reports if trial == 5 else 0):
            script.report(trial, 0.1).drop()
        how = (outcome, error) if trial == 5 else ("failed", "SyntaxError: x\ntrace")
        script.exited(trial, how[0], error=how[1]).drop().released("d1").drop()
    over = f"the last {MOST_ALIKE} trials failed alike: SyntaxError: x" if is_over else ""
    script.decides(Resize(0, 2)).report(0, 0.5).drop()  # its next launch would fail too
    assert (script.trial(0).state, script.state.declined) == (S.RUNNING, over)
    assert len(script.state.trials) == MOST_ALIKE + 2 - is_over
    script.wait(ALIKE_PAUSE_S).report(0, 0.5).drop()
    script.exited(MOST_ALIKE + 1, "failed", error="SyntaxError: x").drop()
    assert script.state.stopping is None
    script.exited(0, "finished").drop()
    assert script.state.stopping == (over or None)
    if is_over:
        script.released("d0", "d1").drop().reopened().drop()
        assert len(script.state.trials) == MOST_ALIKE + 4


# ---------------------------------------------------------------- on more atoms


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_a_trial_that_fails_on_more_atoms_goes_back_and_grows_no_more(outcome: Outcome) -> None:
    """The trial has trained a step on d0, and fails, or is lost, on d0 and d1 before it reports."""
    script = stages.waiting().released("d0").drop().up(0)
    script.exited(0, outcome, error="ValueError: not wrapped")
    script.drop().released("d0").expect(launch(0, 3, "d0"))
    assert script.trial(0).error is None
    assert "goes back to 1 and grows no more: ValueError: not wrapped" in str(script.trial(0).story)
    script.up(0).released("d1").drop()
    script.decides(Resize(0, 2)).report(0, 0.6).drop()
    assert script.trial(0).state is S.RUNNING
    assert script.trial(0).atoms == 1


def test_where_three_atoms_have_failed_all_trials_have_powers_of_two() -> None:
    """A batch of 256 divides by 2, 4 and 8."""
    script = Script(devices=4).wants(Start(1)).start().drop().report(0, 0.5).drop()
    script.decides(Resize(0, 3)).report(0, 0.4).drop().exited(0, saved=2).drop()
    script.released("d0").drop().exited(0, "failed", error="AssertionError").drop()
    script.released("d0", "d1", "d2").expect(launch(0, 3, "d0"))
    script.report(0, 0.4).drop().decides(Resize(0, 3)).report(0, 0.4).drop()
    assert script.trial(0).reserved == ("d1",)
    script.wants(Start(3)).exited(0, saved=4).expect(
        ConfirmRelease(("d0",)), launch(1, 1, "d2", "d3")
    )


@pytest.mark.parametrize(("verb", "becomes"), [("pause", S.PAUSED), ("stop", S.STOPPED)])
def test_a_trial_that_is_to_leave_and_fails_on_more_atoms_does_not_go_back(
    verb: Verb, becomes: TrialState
) -> None:
    script = stages.waiting().released("d0").drop().up(0).drop().asked(verb, 0).drop()
    script.exited(0, "failed", error="ValueError: not wrapped").drop()
    assert script.trial(0).state is becomes


def test_a_larger_launch_that_never_began_is_begun_again() -> None:
    script = stages.waiting().released("d0").drop().exited(0, "lost", unbegun=True).drop()
    script.released("d0", "d1").expect(launch(0, 3, "d0", "d1"))


def test_a_growth_that_failed_says_nothing_about_speed() -> None:
    """A failed growth is no resize from two atoms to one on which a step takes as long."""
    script = Script(devices=2, scaling="auto").wants(Start(1)).start().drop()
    script.wait(1.0).report(0, 0.1, step_time_s=1.0).drop()
    speed = script.state.speed
    measured: list[tuple[float, ...]] = []
    speed.saw_resize = lambda *seen: measured.append(seen)  # type: ignore[method-assign]
    script.decides(Resize(0, 2)).wait(1.0).report(0, 0.1, step_time_s=1.0).drop()
    script.exited(0, saved=2).drop().released("d0").drop().up(0)
    script.exited(0, "failed", error="ValueError: not wrapped").drop().released("d0", "d1").drop()
    for _ in range(2):
        script.wait(1.0).report(0, 0.2, step_time_s=1.0).drop()
    assert script.trial(0).atoms == 1
    assert [(seen[0], seen[2]) for seen in measured] == [(1, 1)], "from one atom to one"


# ---------------------------------------------------------------- failed: relaunched from a newer checkpoint


@pytest.mark.parametrize(("saved", "becomes"), [(2, S.FAILED), (3, S.STARTING)])
def test_a_script_that_fails_continues_from_a_checkpoint_newer_than_its_last_failure(
    saved: int, becomes: TrialState
) -> None:
    """As after a hiccup of a network disk. Who fails again, at the same step or one further, without it has failed."""
    script = stages.running().wait(1.0).report(0, 0.6).drop()
    script.exited(0, "failed", error="OSError: train.py:3\ntrace").expect(ConfirmRelease(("d0",)))
    told = "failed at step 2: OSError: train.py:3; continues from step 1"
    assert script.trial(0).story[-1][1] == f"running -> starting: {told}"
    assert (script.state.failures, script.policy.exits) == (0, [])
    script.released("d0").expect(launch(0, 2, "d0"))
    script.report(0, 0.6, step=2).drop().report(0, 0.7, step=3).drop().saved(0, saved).drop()
    assert script.trial(0).error == told
    script.wants(Start(1)).exited(0, "failed").drop()
    assert (script.trial(0).state, script.trial(0).infrastructure_faults) == (becomes, 0)


def test_an_error_in_each_launch_is_the_scripts_own() -> None:
    """A loader that ends with its first epoch, say: each launch would gain one step."""
    script = stages.running()
    for step in range(2, MOST_RETRIES + 2):
        script.exited(0, "failed").drop().released("d0").expect(launch(0, step, "d0"))
        script.report(0, 0.5, step=step).drop().saved(0, step).drop()
    assert script.exited(0, "failed").trial(0).state is S.FAILED


def test_a_script_that_fails_as_it_pauses_is_paused_once() -> None:
    script = stages.pausing().wants(Start(1)).exited(0, "failed", error="stale").drop()
    assert script.trial(0).reason == "failed at step 2: stale; continues from step 1"
    script.released("d0").drop()
    script.asked("unpause", 0).expect(launch(0, 2, "d0")).report(0).drop().asked("pause", 0).drop()
    assert script.exited(0, "failed").trial(0).state is S.FAILED


def test_a_trial_that_lacks_memory_of_a_gpu_has_failed() -> None:
    script = stages.running().exited(0, "failed", error=f"{OUT_OF_GPU_MEMORY} on 1 atom. ..")
    assert script.trial(0).state is S.FAILED

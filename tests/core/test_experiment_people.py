"""Wishes of people, and the deadline, in every stage a trial can be in."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch, Save, Yield
from gpusched.core.decisions import NO_STEP_FITS, Pause, Resume, Start, Stop
from gpusched.core.events import LimitsMoved, TimerFired, UserAsked, Verb
from gpusched.core.trial import TrialState
from tests.core import stages
from tests.helpers import Finish, Script, SetTimer, launch

S = TrialState
KILL = Kill(0, 1, 5.0)
LEAVES, SAVES = Yield(0, 1, save=False), Yield(0, 1, save=True)

#: stage -> what a user's pause returns, the state it leaves the trial in, and what follows a yield
PAUSES: dict[str, tuple[list[Command], TrialState, TrialState | None]] = {
    "starting": ([KILL], S.YIELDING, S.PAUSED),
    "up": ([SAVES], S.YIELDING, S.PAUSED),
    "running": ([SAVES], S.YIELDING, S.PAUSED),
    "resizing": ([], S.YIELDING, S.PAUSED),
    "waiting": ([], S.PAUSED, None),
    "pausing": ([], S.YIELDING, S.PAUSED),
    "stopping": ([], S.YIELDING, S.STOPPED),
    "completing": ([], S.YIELDING, S.COMPLETED),
    "killed_while_starting": ([], S.YIELDING, S.PAUSED),
    "paused": ([], S.PAUSED, None),
    "completed": ([], S.COMPLETED, None),
    "stopped": ([], S.STOPPED, None),
    "failed": ([], S.FAILED, None),
}
STOPS: dict[str, tuple[list[Command], TrialState, TrialState | None]] = {
    **PAUSES,
    "starting": ([KILL], S.YIELDING, S.STOPPED),
    "up": ([LEAVES], S.YIELDING, S.STOPPED),
    "running": ([LEAVES], S.YIELDING, S.STOPPED),
    "resizing": ([], S.YIELDING, S.STOPPED),
    "waiting": ([], S.STOPPED, None),
    "pausing": ([], S.YIELDING, S.STOPPED),
    "killed_while_starting": ([], S.YIELDING, S.STOPPED),
    "paused": ([], S.STOPPED, None),
}


def _check(script: Script, state: TrialState, after: TrialState | None) -> None:
    trial = script.trial(0)
    assert trial.state is state
    assert (trial.after.state if trial.after else None) is after


@pytest.mark.parametrize("stage", list(stages.STAGES))
@pytest.mark.parametrize(("verb", "outcomes"), [("pause", PAUSES), ("stop_trial", STOPS)])
def test_a_user_pauses_or_stops_a_trial(verb: Verb, outcomes: Any, stage: str) -> None:
    script = stages.STAGES[stage]()
    commands, state, after = outcomes[stage]
    script.wants(Start(1) if stage == "waiting" else Pause(0))
    expected = [*commands, launch(1, 1, "d1")] if stage == "waiting" else commands
    script.asked(verb, 0).expect(*expected)
    _check(script, state, after)


@pytest.mark.parametrize("stage", list(stages.STAGES))
@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("deadline", "deadline"),
        ("stop", "stopped by the user"),
        ("cancel", "cancelled by the user"),
    ],
)
def test_the_end_comes_in_every_stage(stage: str, end: str, why: str) -> None:
    script = stages.STAGES[stage]().wait(10.0)
    others = [t.id for t in script.state.live.values() if t.id != 0]
    if end == "deadline":
        script.timer("deadline")
    else:
        script.asked("cancel" if end == "cancel" else "stop")
    expected: list[Command] = []
    if script.trial(0).state is S.YIELDING:
        saves = stage in ("up", "running")  # the search may go on
        expected += [SAVES] if saves else STOPS[stage][0]
    expected += [Kill(trial, 1, 5.0) for trial in others]  # trial 1 is only starting
    live = [0] * (script.trial(0).state is S.YIELDING) + others
    if live:
        next_step_s = 2.1 if end == "stop" and 0 in live and script.trial(0).seq else 0.0
        expected.append(SetTimer("last call", script.now + 1.5 + next_step_s))
        expected += [Kill(trial, 1, 5.0) for trial in live] if end == "cancel" else []
    else:
        expected.append(Finish(why))
    script.expect(*expected)
    for trial in live:
        script.exited(trial, "killed")
        finish = [Finish(why)] if trial == live[-1] else []
        script.expect(ConfirmRelease(("d0",) if trial == 0 else ("d1",)), *finish)
    assert script.experiment.state.finished
    assert script.state.stopping == why
    assert all(trial.is_final for trial in script.state.trials.values())


# ---------------------------------------------------------------- pause, unpause


def test_the_policy_does_not_resume_what_a_user_paused() -> None:
    script = stages.running().asked("pause", 0).expect(SAVES)
    script.wants(Resume(0, 1)).exited(0, saved=1).expect(ConfirmRelease(("d0",)))
    script.wants(Resume(0, 1)).released("d0").expect_nothing()
    assert not script.experiment.state.finished, "a person may unpause it"
    script.asked("unpause", 0).expect(launch(0, 2, "d0"))


def test_unpausing_waits_for_an_atom() -> None:
    script = Script(devices=1).wants(Start(1)).start().drop().report(0, 0.5).drop()
    script.asked("pause", 0).drop().wants(Start(1)).exited(0, saved=1).drop()
    script.released("d0").drop()
    script.asked("unpause", 0).expect_nothing().asked("unpause", 0).expect_nothing()
    script.exited(1, "failed").expect(ConfirmRelease(("d0",)))
    script.wants(Start(1)).released("d0").expect(launch(0, 2, "d0"))
    assert script.state.wanted == [], "asking twice counts once"


def test_unpausing_what_is_about_to_pause() -> None:
    script = stages.pausing().asked("unpause", 0).expect_nothing()
    script.exited(0, saved=2).expect(ConfirmRelease(("d0",)), launch(0, 2, "d1"))


def test_pausing_again_takes_an_unpause_back() -> None:
    script = stages.pausing().asked("unpause", 0).drop().asked("pause", 0).expect_nothing()
    script.exited(0, saved=2).expect(ConfirmRelease(("d0",)))
    script.released("d0").expect_nothing()
    assert script.trial(0).state is S.PAUSED


def test_the_wish_to_go_on_does_not_outlive_the_launch() -> None:
    script = stages.pausing().wants(Start(1)).exited(0, saved=2).drop()
    script.asked("unpause", 0).expect_nothing().asked("unpause", 0).expect_nothing()
    script.released("d0").expect(launch(0, 2, "d0"))
    script.decides(Pause(0)).report(0, 0.3).expect(Yield(0, 2, save=True))
    script.exited(0, saved=3).expect(ConfirmRelease(("d0",)))
    script.released("d0").expect_nothing()
    assert script.trial(0).state is S.PAUSED


def test_stopping_takes_an_unpause_back() -> None:
    script = stages.pausing().asked("unpause", 0).drop().asked("stop_trial", 0).expect_nothing()
    assert script.state.wanted == []
    script.wants(Start(1)).exited(0, saved=2).expect(ConfirmRelease(("d0",)), launch(1, 1, "d1"))
    assert script.trial(0).state is S.STOPPED


def test_a_resize_that_becomes_a_pause_frees_what_was_reserved() -> None:
    script = stages.resizing().asked("pause", 0).expect_nothing()
    assert script.device("d1") == "held"
    script.exited(0, saved=2).expect(ConfirmRelease(("d0",)))
    assert (script.device("d0"), script.device("d1")) == ("draining", "free")
    assert script.trial(0).saved_step == 2, "it had been told to save"


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("rules", "patience_s"),
    [
        ({"deadline_s": 1000.0}, 1.5 + 2 * 40.0 + 5.0),
        ({"deadline_s": 92.0}, 1.5 + 10.0),  # not beyond the deadline
    ],
    ids=["slow steps", "deadline near"],
)
def test_a_stop_waits_for_the_next_report_and_its_save(
    rules: dict[str, Any], patience_s: float
) -> None:
    script = stages.running(**rules).wait(40.0).report(0, 0.6, step_time_s=40.0).drop()
    script.saved(0, 2, save_s=5.0).drop().wait(40.0).report(0, 0.4, step_time_s=40.0).drop()
    script.asked("stop")
    script.expect(Yield(0, 1, save=True), SetTimer("last call", script.now + patience_s))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_stop_waits_for_a_first_save_and_for_no_trial_that_it_kills(is_resumed: bool) -> None:
    script = stages.running(deadline_s=1000.0).saved(0, 1, save_s=20.0).drop().decides(Pause(0))
    script.wait(40.0).report(0, 0.4, step_time_s=40.0).drop()
    script.wants(Start(1)).exited(0, saved=2).drop().up(1).report(1, 0.3).drop()
    script.wants(*[Resume(0, 1)] * is_resumed).released("d0").drop()
    script.asked("stop")
    kills = [Kill(0, 2, 5.0)] * is_resumed  # has long steps, but none to report
    step_s = script.trial(1).report_s
    assert step_s < 10.0
    last_call = SetTimer("last call", script.now + 1.5 + 2 * step_s + 20.0)
    script.expect(Yield(1, 1, save=True), *kills, last_call)


def test_a_last_report_may_be_the_best_and_is_saved() -> None:
    script = stages.stopping()
    script.report(0, 0.9).expect(Save(0, 1))
    script.report(0, 0.95).expect_nothing()  # told once is enough
    assert script.trial(0).after is not None
    assert script.trial(0).after.save


def test_the_last_call_kills_what_has_not_left() -> None:
    script = stages.running().asked("stop").drop()
    script.wait(1.5).timer("last call").expect(KILL)
    script.exited(0, "killed").expect(ConfirmRelease(("d0",)), Finish("stopped by the user"))


@pytest.mark.parametrize("end", ["deadline", "target"])
def test_a_save_of_the_best_model_that_has_begun_may_end(end: str) -> None:
    script = (
        Script(devices=2, target=0.9, deadline_s=100.0).wants(Start(1), Start(1)).start().drop()
    )
    script.report(0, 0.5).drop().saved(0, 1, save_s=4.0).drop().report(1, 0.4).drop().wait(9.0)
    if end == "deadline":
        script.decides(Stop(0, NO_STEP_FITS)).report(0, 0.7).drop().timer("deadline").drop()
    else:
        script.report(0, 0.95).drop()
    script.timer("last call").expect(Kill(1, 1, 5.0), SetTimer("last call", script.now + 60.0))
    script.exited(1, "killed").drop()
    script.timer("last call").expect(Kill(0, 1, 60.0))


@pytest.mark.parametrize("later", [[], [0.4]], ids=["the last step", "the step before"])
def test_a_trial_that_saves_the_best_model_beside_its_training_ends_once_that_is_saved(
    later: list[float],
) -> None:
    """The deadline came in a step that began while a large model was on its way to the disk: killed after 5 s."""
    script = stages.running(deadline_s=100.0).saved(0, 1, save_s=40.0).drop().wait(9.0)
    for metric in (0.9, *later):
        script.report(0, metric).drop()
    script.timer("deadline").drop()
    script.timer("last call").expect(Kill(0, 1, 80.0))


def test_asking_twice_to_stop_does_not_put_the_last_call_off() -> None:
    script = stages.running().asked("stop").drop().wait(1.0).asked("stop").expect_nothing()
    script.timer("deadline").expect_nothing()
    assert script.state.stopping == "stopped by the user"


def test_cancel_after_stop_kills_at_once() -> None:
    script = stages.running().asked("stop").drop().asked("cancel").expect(KILL)
    script.exited(0, "killed").expect(ConfirmRelease(("d0",)), Finish("stopped by the user"))


def test_kill_leaves_no_grace() -> None:
    script = stages.running().asked("cancel").drop().asked("kill").expect(Kill(0, 1, 0.0))
    script.exited(0, "killed").expect(ConfirmRelease(("d0",)), Finish("cancelled by the user"))


def test_nothing_is_launched_while_it_stops() -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().asked("stop").drop().wants(Start(1))
    script.exited(1, "killed").expect(ConfirmRelease(("d1",))).released("d1").expect_nothing()
    script.exited(0).expect(ConfirmRelease(("d0",)), Finish("stopped by the user"))


@pytest.mark.parametrize(("to_s", "then_s"), [(2000.0, 2000.0), (3.0, 7.0)])
def test_a_moved_deadline_is_not_before_now(to_s: float, then_s: float) -> None:
    script = Script().wants(Start(1)).start().drop().wait(7.0)
    script.feed(LimitsMoved(at=script.now, deadline_s=to_s)).expect(SetTimer("deadline", then_s))
    assert script.state.time_left_s == then_s - 7.0


# ---------------------------------------------------------------- configurations that a person asks for


def tried(script: Script, **hparams: object) -> Script:
    return script.feed(UserAsked(verb="try", at=script.now, hparams=hparams))


def test_it_waits_for_an_atom_and_is_next_before_the_sequence() -> None:
    script = Script().wants(Start(1)).start().drop().report(0).drop()
    tried(tried(script, lr=0.1), lr=0.2).expect_nothing()
    assert script.state.draws_left == float("inf")
    script.exited(0, "finished").drop().wants(Start(1)).released("d0")
    script.expect(Launch(1, 1, ("d0",), {"lr": 0.1}))
    script.exited(1, "finished").drop().released("d0").expect(Launch(2, 1, ("d0",), {"lr": 0.2}))
    script.exited(2, "finished").drop().wants(Start(1)).released("d0")
    script.expect(Launch(3, 1, ("d0",), {"n": 1}))


@pytest.mark.parametrize(
    ("sizes", "asked", "atoms"),
    [((), 2, [3, 1, 1]), ((1, 2, 4), 2, [2, 1, 1]), ((2, 4), 3, [2, 2]), ((4,), 1, [4])],
)
def test_a_trial_on_several_atoms_makes_room_for_it(
    sizes: tuple[int, ...], asked: int, atoms: list[int]
) -> None:
    """The best trial had all atoms until the deadline, and what a person asked for was never tried."""
    script = Script(devices=5, sizes=sizes).wants(Start(5)).start().drop().report(0).drop()
    for _ in range(asked):
        tried(script, lr=0.1).drop()
    script.report(0).drop()
    if script.trial(0).is_resizing:
        script.exited(0, saved=2).drop().released(*script.devices).drop()
    assert [trial.atoms for trial in script.state.live.values()] == atoms


def test_it_starts_where_no_configuration_is_left() -> None:
    script = Script(devices=2, max_trials=1).wants(Start(1)).start().drop()
    assert script.state.draws_left == 0
    tried(script, lr=0.1).expect(Launch(1, 1, ("d1",), {"lr": 0.1}))


def test_a_search_that_is_ending_takes_none_and_one_that_goes_on_starts_those_it_had() -> None:
    script = Script().wants(Start(1)).start().drop().report(0).drop()
    tried(script, lr=0.1).drop().asked("stop").drop()
    tried(script, lr=0.2).drop().exited(0).drop().released("d0").drop()
    script.reopened(checkpoints={7: 1})
    script.expect(SetTimer("deadline", 2000.0), launch(0, 2, "d0"))
    script.exited(0, "finished").drop().released("d0")
    script.expect(Launch(1, 1, ("d0",), {"lr": 0.1}))
    assert not script.state.configurations.given


def test_a_timer_that_was_moved_and_fires_all_the_same_is_not_heard() -> None:
    """On a full disk a moved deadline waits with every other command."""
    script = stages.running(deadline_s=100.0)
    script.feed(LimitsMoved(at=50.0, deadline_s=500.0)).drop()
    script.feed(TimerFired(at=100.0, timer="deadline")).expect_nothing()
    assert script.state.stopping is None
    script.feed(TimerFired(at=500.0, timer="deadline")).drop()
    assert script.state.stopping == "deadline"

"""Devices that are lost, kept from use and given back, in every relation a trial can have to them."""

from __future__ import annotations

import pytest

from gpusched.core.commands import ConfirmRelease, Kill, Yield
from gpusched.core.decisions import Pause, Resize, Resume, Start
from gpusched.core.events import DevicesJoined
from gpusched.core.explain import explain
from gpusched.core.trial import TrialState
from tests.core import stages
from tests.helpers import Finish, Script, SetTimer, launch

S = TrialState


def grown(atoms: int, devices: int, **rules: object) -> Script:
    """Trial 0 runs on the first ``atoms`` devices."""
    script = Script(devices=devices, **rules).wants(Start(atoms)).start().drop()
    return script.report(0, 0.5).drop().saved(0, 1).drop()


# ---------------------------------------------------------------- quarantine


def test_a_free_device_in_quarantine_is_not_given_out() -> None:
    script = stages.running().quarantined("d1").expect_nothing()
    script.wants(Start(1)).wait(1.0).report(0, 0.4).expect_nothing()
    assert script.state.atoms_total == 1
    assert script.state.devices.slots["d1"].reason == "Xid 79"


def test_what_cannot_be_used_at_the_start_begins_in_quarantine() -> None:
    script = Script(devices=2).wants(Start(1))
    script.feed(DevicesJoined(at=0.0, devices=("d0", "d1"), unusable={"d0": "leased by another"}))
    script.expect(SetTimer("deadline", 1000.0), launch(0, 1, "d1"))
    slot = script.state.devices.slots["d0"]
    assert slot.reason == "leased by another"
    script.wants(Start(1)).readmitted("d0").expect(launch(1, 1, "d0"))
    assert slot.reason == ""


def test_people_read_the_name_of_a_device_that_has_one() -> None:
    script = Script(devices=1).wants(Start(1))
    joined = DevicesJoined(at=0.0, devices=("GPU-8a", "d1"), labels={"GPU-8a": "GPU 3"})
    script.feed(joined).expect(SetTimer("deadline", 1000.0), launch(0, 1, "GPU-8a"))
    told = explain(script.state, script.policy, 0)
    assert told.why == "processes start on GPU 3"
    script.quarantined("GPU-8a", "GPU 3: Xid 79").expect(Kill(0, 1, 0.0))
    assert script.trial(0).doom.why == "GPU 3 was lost: Xid 79"


def test_a_first_trial_waits_for_a_device_that_may_come_back() -> None:
    script = Script(devices=2).wants(Start(2))
    script.feed(DevicesJoined(at=0.0, devices=("d0", "d1"), unusable={"d0": "a stranger's"}))
    script.expect(SetTimer("deadline", 1000.0))
    script.wants(Start(2)).readmitted("d0").expect(launch(0, 1, "d0", "d1"))


def test_a_trial_that_runs_on_a_lost_device_goes_on_elsewhere() -> None:
    script = grown(2, 3)
    script.quarantined("d1").expect(Kill(0, 1, 0.0))
    assert script.trial(0).devices == ("d0",)
    doom = script.trial(0).doom
    assert doom.why == "d1 was lost: Xid 79"
    script.exited(0, "killed").expect(ConfirmRelease(("d0",)))
    script.released("d0").expect(launch(0, 2, "d0"))
    script.report(0, 0.6).drop()
    assert script.trial(0).doom is None


def test_a_trial_that_lost_its_only_device_waits_for_another() -> None:
    script = Script(devices=2).wants(Start(1), Start(1)).start().drop()
    script.report(0, 0.5).drop().quarantined("d0").expect(Kill(0, 1, 0.0))
    assert script.trial(0).devices == ()
    script.exited(0, "killed").expect_nothing()
    assert script.trial(0).state is S.PAUSED
    assert script.state.wanted == [0]
    assert script.policy.exits == [(0, S.PAUSED)]
    # It needs no policy to go on: it was to train.
    script.exited(1, "finished").drop().released("d1").expect(launch(0, 2, "d1"))
    assert script.state.wanted == []


def test_a_report_on_the_way_out_is_recorded_and_decides_nothing() -> None:
    script = stages.running(scaling="auto").quarantined("d0").drop()
    script.policy.reports.clear()
    before = script.state.speed.step_on_one_atom_s
    script.decides(Pause(0)).report(0, 0.4, step_time_s=77.0).expect_nothing()
    assert script.policy.reports == []
    assert script.trial(0).step == 2
    assert script.state.speed.step_on_one_atom_s == before, "on which atoms was it?"


@pytest.mark.parametrize("outcome", ["failed", "finished", "lost", "killed"])
def test_however_the_script_dies_of_it_the_device_is_to_blame(outcome: str) -> None:
    script = stages.running().quarantined("d0").drop()
    script.exited(0, outcome, error="NCCL error").expect(launch(0, 2, "d1"))
    assert script.trial(0).infrastructure_faults == 1
    assert any("d0 was lost: Xid 79; continues" in text for _, text in script.trial(0).story)


def test_a_lost_device_of_a_pausing_trial_ends_it_and_it_is_paused() -> None:
    script = stages.pausing().quarantined("d0").expect(Kill(0, 1, 0.0))
    script.wants(Start(1)).exited(0, "killed").expect(launch(1, 1, "d1"))
    assert script.trial(0).state is S.PAUSED
    assert script.state.wanted == [], "it was to pause anyway"


def test_losing_a_reserved_device_shrinks_the_resize() -> None:
    script = stages.resizing().quarantined("d1").expect_nothing()
    assert script.trial(0).reserved == ()
    script.exited(0, saved=2).expect(ConfirmRelease(("d0",)))
    script.released("d0").expect(launch(0, 2, "d0"))


def test_losing_an_awaited_device_launches_on_the_rest() -> None:
    script = stages.waiting().quarantined("d0").expect(launch(0, 2, "d1"))
    script.released("d0").expect_nothing()


def test_losing_a_clean_device_while_waiting_for_another() -> None:
    script = stages.waiting().quarantined("d1").expect_nothing()
    assert not script.trial(0).doom, "it has no processes to kill"
    script.released("d0").expect(launch(0, 2, "d0"))


def test_losing_every_device_while_waiting() -> None:
    script = stages.waiting().quarantined("d1").expect_nothing().quarantined("d0").expect_nothing()
    assert script.trial(0).state is S.PAUSED
    assert script.state.wanted == [0]
    script.readmitted("d1").expect(launch(0, 2, "d1"))


def test_a_draining_device_that_nobody_awaits_is_just_gone() -> None:
    script = stages.pausing().wants(Start(1)).exited(0).drop().quarantined("d0").expect_nothing()
    assert not script.state.devices.draining
    script.released("d0").expect_nothing()
    assert script.device("d0") == "quarantined"


# ---------------------------------------------------------------- sizes


def test_what_is_left_is_rounded_down_to_an_allowed_size() -> None:
    script = grown(4, 4, sizes=(1, 2, 4)).quarantined("d2").expect(Kill(0, 1, 0.0))
    script.exited(0, "killed").expect(ConfirmRelease(("d0", "d1", "d3")))
    assert script.trial(0).devices == ("d0", "d1")
    script.released("d0", "d1", "d3").expect(launch(0, 2, "d0", "d1"))
    assert script.state.devices.free == {"d3"}


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_a_trial_that_fails_on_what_a_loss_has_left_goes_on_with_less(outcome: str) -> None:
    script = grown(4, 4).quarantined("d2").drop().exited(0, "killed").drop()
    script.released("d0", "d1", "d3").expect(launch(0, 2, "d0", "d1", "d3"))
    script.exited(0, outcome, error="AssertionError").drop().released("d0", "d1", "d3")
    left = ("d0", "d1") if outcome == "failed" else ("d0", "d1", "d3")
    script.expect(launch(0, 3, *left))


def test_too_few_for_any_size_and_it_waits_for_enough() -> None:
    script = grown(2, 2, sizes=(2,)).quarantined("d1").expect(Kill(0, 1, 0.0))
    script.exited(0, "killed").expect(ConfirmRelease(("d0",)))
    script.released("d0").expect_nothing()
    assert script.trial(0).state is S.PAUSED
    assert not script.experiment.state.finished, "d1 may come back"
    script.readmitted("d1").expect(launch(0, 2, "d0", "d1"))


def test_a_resize_that_lost_a_reserved_device_takes_the_size_below() -> None:
    script = grown(2, 4, sizes=(2, 4)).decides(Resize(0, 4)).report(0, 0.4).drop()
    assert script.trial(0).reserved == ("d2", "d3")
    script.quarantined("d3").expect_nothing()
    script.exited(0, saved=2).expect(ConfirmRelease(("d0", "d1")))
    # The clean one is of use at once, one of the old ones is kept, the other is free when it is released.
    assert script.trial(0).devices == ("d0", "d2")
    script.released("d1").expect_nothing()
    script.released("d0").expect(launch(0, 2, "d0", "d2"))


# ---------------------------------------------------------------- readmission, and none left


def test_with_all_devices_in_quarantine_the_deadline_still_comes() -> None:
    script = stages.running().quarantined("d1").drop().quarantined("d0").drop()
    script.exited(0, "lost").expect_nothing()
    script.wait(1000.0).timer("deadline").expect(Finish("deadline"))


# ---------------------------------------------------------------- release


def test_releases_come_in_any_order_and_more_than_once() -> None:
    script = grown(3, 3).decides(Resize(0, 2)).report(0, 0.4).expect(Yield(0, 1, save=True))
    script.exited(0, saved=2).expect(ConfirmRelease(("d0", "d1", "d2")))
    script.released("d2").expect_nothing().released("d1").expect_nothing()
    assert script.state.devices.free == {"d2"}
    script.released("d2", "d1").expect_nothing()
    script.released("d0").expect(launch(0, 2, "d0", "d1"))
    script.released("d0").expect_nothing()


def test_one_release_may_launch_several_trials() -> None:
    script = Script(devices=4).wants(Start(2), Start(2)).start().drop()
    script.report(0, 0.5).drop().report(1, 0.5).drop()
    script.decides(Resize(0, 1), Resize(1, 1)).report(0, 0.4).drop()
    script.exited(0).drop().exited(1).drop()
    script.released("d2", "d0").expect(launch(0, 2, "d0"), launch(1, 2, "d2"))


def test_a_pause_of_a_waiting_trial_gives_everything_back() -> None:
    script = stages.waiting()
    script.policy.exits.clear()
    script.asked("pause", 0).expect_nothing()
    assert script.policy.exits == [(0, S.PAUSED)]
    assert (script.device("d0"), script.device("d1")) == ("draining", "free")
    script.released("d0").expect_nothing()
    assert script.state.devices.free == {"d0", "d1"}


def test_a_doomed_trial_is_not_resized() -> None:
    script = grown(1, 2).quarantined("d0").drop()
    script.policy.on_next_wake.append(Resize(0, 2))
    script.timer("wake").expect_nothing()


def test_resumes_and_starts_do_not_take_what_drains() -> None:
    script = stages.pausing().wants(Resume(0, 2)).exited(0).expect(ConfirmRelease(("d0",)))
    script.wants(Start(2)).wait(1.0).quarantined("d9").expect_nothing()
    assert (script.device("d0"), script.device("d1")) == ("draining", "free")
    script.wants(Resume(0, 2)).released("d0").expect(launch(0, 2, "d0", "d1"))


def test_the_watch_goes_on_with_all_devices_gone() -> None:
    script = Script(devices=1, watch=True).wants(Start(1)).start().drop()
    script.quarantined("d0").drop().exited(0, "lost").drop()
    script.wait(10.0).timer("watch").expect(SetTimer("watch", 20.0))


# ---------------------------------------------------------------- nodes: islands that are apart


def nodes(*sizes: int, **rules: object) -> Script:
    """Devices of nodes: ``d0`` and so on, ``sizes`` of them on each."""
    numbers = [node for node, size in enumerate(sizes) for _ in range(size)]
    islands = {f"d{place}": node for place, node in enumerate(numbers)}
    return Script(devices=len(numbers), islands=islands, islands_apart=True, **rules)


def test_a_trial_gets_what_one_node_has() -> None:
    script = nodes(2, 3).wants(Start(4)).start()
    script.expect(SetTimer("deadline", 1000.0), launch(0, 1, "d2", "d3", "d4"))
    script.wants(Start(2)).report(0, 0.5)
    assert launch(1, 1, "d0", "d1") in script.take()


def test_it_grows_on_its_own_node_or_not_at_all() -> None:
    script = nodes(2, 3).wants(Start(1)).start().drop().report(0, 0.5).drop()
    script.decides(Resize(0, 5)).report(0, 0.6).expect(Yield(0, 1, True))
    script.exited(0, "yielded", saved=2).drop().released("d0")
    script.expect(launch(0, 2, "d0", "d1"))
    script.report(0, 0.7).drop().decides(Resize(0, 5)).report(0, 0.8)
    assert not [command for command in script.take() if isinstance(command, Yield)]


def test_an_allowed_size_is_kept_to_on_a_small_node() -> None:
    script = nodes(3, 3, sizes=(2, 4)).wants(Start(4)).start()
    script.expect(SetTimer("deadline", 1000.0), launch(0, 1, "d0", "d1"))


def test_devices_that_join_are_used() -> None:
    script = nodes(1).wants(Start(1)).start().drop().wants(Start(2))
    joined = DevicesJoined(at=1.0, devices=("e0", "e1"), islands={"e0": 7, "e1": 7})
    script.feed(joined).expect(launch(1, 1, "e0", "e1"))
    assert script.feed(joined).expect_nothing().state.devices.total == 3

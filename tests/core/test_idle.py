"""Idle atoms: the reason that is given for each, since when, and where the time went at the end."""

from __future__ import annotations

import pytest

from gpusched.core import idle
from gpusched.core.decisions import LeaveFree, Pause, Resize, Start
from gpusched.core.events import StorageChanged, TrialUp
from gpusched.core.trial import Cap
from tests.helpers import Script


def told(script: Script) -> list[tuple[tuple[str, ...], float, str, str]]:
    rows = idle.idle_now(script.experiment.idle, script.state)
    return [(row.devices, row.since, row.reason, row.detail) for row in rows]


def test_nothing_is_idle_while_every_atom_trains() -> None:
    script = Script(devices=1).wants(Start(1)).start().drop().up(0).drop().report(0).drop()
    assert told(script) == []


def test_a_free_atom_has_the_policy_s_reason_and_the_time_since_it_holds() -> None:
    declined = LeaveFree("no trial could catch up")
    script = Script(devices=2).wants(Start(1), declined).start().drop()
    script.wants(declined).up(0).drop().wait(5.0).wants(declined).report(0).drop()
    assert told(script) == [(("d1",), 0.0, "no trial could catch up", "")]
    script.trial(0).cap = Cap(1, "failed on 2 atoms")
    script.wait(1.0).wants(declined).report(0).drop()
    detail = "each live trial stays at its size: trial 0: failed on 2 atoms"
    assert told(script) == [(("d1",), 0.0, "no trial could catch up", detail)]


def test_a_trial_that_is_too_small_for_the_next_size_is_not_said_to_have_the_largest() -> None:
    script = Script(devices=3, sizes=(2, 4)).wants(Start(2)).start().drop()
    _, (devices, _, reason, detail) = told(script)
    assert (devices, reason) == (("d2",), "fewer than 2 atoms, the smallest size")
    assert detail.endswith("the recipe allows no larger one that the free atoms make up")


def test_a_trial_that_starts_has_kept_its_atom_waiting_since_its_own_launch() -> None:
    """With launches that overlap the time counted up for hours."""
    script = Script(devices=2).wants(Start(1)).start().drop()
    script.wait(4.0).wants(Start(1)).asked("unpause", 7).drop()
    script.wait(1.0).up(0).drop().wait(1.0)
    assert told(script) == [(("d1",), 4.0, idle.STARTING, "trial 1")]


def test_the_trial_that_failed_on_more_atoms_is_named_with_its_error() -> None:
    script = Script(devices=2).wants(Start(1)).start().drop().up(0).drop()
    script.decides(Resize(0, 2)).report(0).drop().exited(0, saved=1).drop().released("d0").drop()
    script.exited(0, "failed", error="wrap the model (train.py:31)").drop().released("d0", "d1")
    ((devices, _, _, detail),) = [row for row in told(script.drop()) if "size" in row[3]]
    assert devices == ("d1",)
    assert "trial 0: failed on 2 atoms" in detail
    assert "wrap the model (train.py:31)" in detail


def test_atoms_that_are_leaving_come_and_reserved_are_told_apart() -> None:
    script = Script(devices=3).wants(Start(1), Start(1)).start().drop().up(0).drop().up(1).drop()
    script.decides(Resize(0, 2)).report(0).drop()
    assert told(script) == [(("d2",), 0.0, idle.RESERVED, "trial 0")]
    script.decides(Pause(1)).report(1).drop().wait(2.0).exited(1).drop()
    assert (("d1",), 2.0, idle.RELEASING, "trial 1 has left") in told(script)
    script.quarantined("d1", "held by pid 311").drop()
    assert (("d1",), 2.0, idle.QUARANTINED, "held by pid 311") in told(script)


def test_facts_about_the_search_come_before_the_policy() -> None:
    script = Script(devices=1, sizes=(1,)).wants(Start(1)).start().drop().up(0).drop()
    script.decides(Pause(0)).report(0).drop().exited(0).drop()
    script.feed(StorageChanged(at=script.now, low=True, what="full")).drop().released("d0").drop()
    assert [row[2] for row in told(script)] == ["the disk has too little room to begin a trial"]
    script.asked("stop").drop()
    assert [row[2] for row in told(script)] == ["the search is ending"]


def test_every_atom_second_is_counted_once() -> None:
    script = Script(devices=2).wants(Start(1)).start().drop().wait(10.0)
    script.feed(TrialUp(at=10.0, trial=0, incarnation=1)).drop()
    spent = script.experiment.idle.by_reason
    assert spent[idle.STARTING] == pytest.approx(10.0)
    assert sum(spent.values()) == pytest.approx(20.0)  # the other atom was free for as long
    script.wait(5.0).report(0).drop()
    assert sum(spent.values()) == pytest.approx(25.0)

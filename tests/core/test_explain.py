"""``explain``: the present state in a sentence, the policy's words, the story; as data and as lines."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from gpusched import policies
from gpusched.core.decisions import Start
from gpusched.core.events import StorageChanged
from gpusched.core.explain import explain
from tests.core import stages
from tests.helpers import Script, snapshot

# ---------------------------------------------------------------- in every stage

#: stage -> a part of why
WORDS = {
    "starting": "processes start on d0",
    "up": "trains on 1 atom (d0)",
    "running": "trains on 1 atom (d0)",
    "resizing": "to continue with another number of atoms",
    "waiting": "waits until the release of d0 is confirmed",
    "pausing": "to pause",
    "stopping": "for good",
    "completing": "complete",
    "killed_while_starting": "being ended: paused by the user",
    "paused": "",
    "completed": "",
    "stopped": "",
    "failed": "ValueError: no",
}


@pytest.mark.parametrize("stage", list(stages.STAGES))
def test_every_stage_has_its_words(stage: str) -> None:
    script = stages.STAGES[stage]()
    before = snapshot(script.experiment)
    told = explain(script.state, script.policy, 0)
    assert snapshot(script.experiment) == before, "explaining changes nothing"
    assert WORDS[stage] in told.why
    assert told.state == script.trial(0).state.value
    assert told.lines()[0].startswith(f"trial 0 is {told.state} at step ")
    assert sum("line two" in line for line in told.lines()) == (stage == "failed")
    assert list(told.story) == sorted(told.story, key=lambda moment: moment.at)
    assert json.loads(json.dumps(asdict(told)))["why"] == told.why


def test_a_lost_device_and_what_follows() -> None:
    script = stages.running(sizes=(1, 2)).quarantined("d1").drop().quarantined("d0").drop()
    told = explain(script.state, script.policy, 0)
    assert told.why == "being ended: d0 was lost: Xid 79"
    script.exited(0, "killed").expect_nothing()
    told = explain(script.state, script.policy, 0)
    assert told.why == "continues as soon as its atoms are free (no device is left for it)"


def test_who_waits_for_room_on_the_disk_is_not_said_to_wait_for_an_atom() -> None:
    script = stages.running().feed(StorageChanged(at=0.0, low=True, what="full")).drop()
    script.exited(0, "lost").drop().released("d0").drop()
    why = explain(script.state, script.policy, 0).why
    assert why.endswith("; continues when there is room on the disk")


def test_a_person_holds_it() -> None:
    script = stages.pausing().asked("pause", 0).drop().wants(Start(1)).exited(0, saved=2).drop()
    assert "paused by the user" in explain(script.state, script.policy, 0).why


def test_ranks_in_rungs_are_the_policys_sentences() -> None:
    policy = policies.make("asha", {"r": 1, "R": 16, "eta": 2.0})
    script = Script(devices=3, policy=policy, max_trials=3, mode="min").start().drop()
    for trial, loss in ((0, 0.5), (1, 0.3), (2, None)):
        script.report(trial, loss).drop()
    assert "rung 1: 2nd of 3 with 0.5000; " in explain(script.state, policy, 0).policy[0]
    assert "3rd of 3 with no finite metric; " in explain(script.state, policy, 2).policy[0]

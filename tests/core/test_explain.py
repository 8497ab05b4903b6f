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

#: stage -> (a part of why, a part of what makes it move)
WORDS = {
    "starting": ("processes start on d0", "all of its ranks are up"),
    "up": ("trains on 1 atom (d0)", "the trial reports"),
    "running": ("trains on 1 atom (d0)", "the policy decides at every report"),
    "resizing": ("to continue with another number of atoms", "its processes have left"),
    "waiting": ("waits until the release of d0 is confirmed", "are confirmed free"),
    "pausing": ("to pause", "its processes have left"),
    "stopping": ("for good", "its processes have left"),
    "completing": ("complete", "its processes have left"),
    "killed_while_starting": (
        "being ended: paused by the user",
        "the last of its processes is gone",
    ),
    "paused": ("", "the policy chooses this trial"),
    "completed": ("", ""),
    "stopped": ("", ""),
    "failed": ("ValueError: no", ""),
}


@pytest.mark.parametrize("stage", list(stages.STAGES))
def test_every_stage_has_its_words(stage: str) -> None:
    script = stages.STAGES[stage]()
    before = snapshot(script.experiment)
    told = explain(script.state, script.policy, 0)
    assert snapshot(script.experiment) == before, "explaining changes nothing"
    why, moves_when = WORDS[stage]
    assert why in told.why
    assert moves_when in told.moves_when
    assert (told.moves_when == "") == script.trial(0).is_final
    assert told.state == script.trial(0).state.value
    assert told.lines()[0].startswith(f"trial 0 is {told.state} at step ")
    assert sum("line two" in line for line in told.lines()) == (stage == "failed")
    assert list(told.story) == sorted(told.story, key=lambda moment: moment.at)
    assert json.loads(json.dumps(asdict(told)))["moves_when"] == told.moves_when


def test_a_lost_device_and_what_follows() -> None:
    script = stages.running(sizes=(1, 2)).quarantined("d1").drop().quarantined("d0").drop()
    told = explain(script.state, script.policy, 0)
    assert told.why == "being ended: d0 was lost: Xid 79"
    script.exited(0, "killed").expect_nothing()
    told = explain(script.state, script.policy, 0)
    assert told.moves_when == "an atom is free"
    script = Script(devices=2, sizes=(2,)).wants(Start(2)).start().drop().report(0).drop()
    script.quarantined("d1").drop().exited(0, "killed").drop()
    assert explain(script.state, script.policy, 0).moves_when == "2 atoms are free (now 0)"


def test_who_waits_for_room_on_the_disk_is_not_said_to_wait_for_an_atom() -> None:
    script = stages.running().feed(StorageChanged(at=0.0, low=True, what="full")).drop()
    script.exited(0, "lost").drop().released("d0").drop()
    assert explain(script.state, script.policy, 0).moves_when == "the disk has room again"


def test_a_person_holds_it() -> None:
    script = stages.pausing().asked("pause", 0).drop().wants(Start(1)).exited(0, saved=2).drop()
    told = explain(script.state, script.policy, 0)
    assert "paused by the user" in told.why
    assert told.moves_when == "the user unpauses the trial"


def test_ranks_in_rungs_are_the_policys_sentences() -> None:
    policy = policies.make("asha", {"r": 1, "R": 16, "eta": 2.0})
    script = Script(devices=3, policy=policy, max_trials=3, mode="min").start().drop()
    for trial, loss in ((0, 0.5), (1, 0.3), (2, None)):
        script.report(trial, loss).drop()
    assert "rung 1: 2nd of 3" in explain(script.state, policy, 0).policy[0]


def test_nobody_knows_it() -> None:
    script = stages.running()
    with pytest.raises(KeyError):
        explain(script.state, script.policy, 9)

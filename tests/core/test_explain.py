"""``explain``: the present state in a sentence, the policy's words, the story; as data and as lines."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from gpusched import policies
from gpusched.core.decisions import Start
from gpusched.core.events import DevicesJoined, Event, TrialExited, TrialUp, UserAsked
from gpusched.core.experiment import Experiment
from gpusched.core.explain import Explanation, RungRank, explain
from gpusched.core.rules import Rules
from tests.core import stages
from tests.events import reported
from tests.helpers import Script, snapshot


class Play:
    """One trial on two devices, step by step."""

    def __init__(self, **options: object) -> None:
        policy = policies.make("hypersched", {"r": 1, "R": 3, **options})
        self.experiment = Experiment(
            Rules(deadline_s=100, max_trials=1), policy, lambda n: {"x": n}
        )
        self.at = 0.0
        self.tell(DevicesJoined(at=0.0, devices=("d0", "d1")))

    def tell(self, event: Event) -> Explanation:
        self.experiment.handle(event)
        return explain(self.experiment.state, self.experiment.policy, 0)

    def report(self, step: int) -> Explanation:
        return self.tell(
            reported(
                at=float(step),
                trial=0,
                incarnation=1,
                seq=step,
                step=step,
                metric=0.5,
                step_time_s=1.0,
            )
        )


def test_each_state_in_a_sentence() -> None:
    play = Play()
    assert explain(play.experiment.state, play.experiment.policy, 0).why == "processes start on d0"
    assert "trains on 1 atom (d0)" in play.tell(TrialUp(at=0.5, trial=0, incarnation=1)).why
    told = play.report(1)
    assert any("rung 1: 1st of 1" in sentence for sentence in told.policy)
    asked = play.tell(UserAsked(at=1.5, verb="pause", trial=0))
    assert "leaves at its next report, to pause" in asked.why
    gone = play.tell(TrialExited(at=2.0, trial=0, incarnation=1, outcome="yielded", saved_step=1))
    assert "paused by a person" in gone.why
    assert gone.story[-1].what.startswith("yielding -> paused")


def test_a_failure_shows_its_error() -> None:
    play = Play()
    failed = play.tell(
        TrialExited(
            at=1.0, trial=0, incarnation=1, outcome="failed", error="ValueError: no\nline two"
        )
    )
    assert failed.why == "ValueError: no"
    assert "  line two" in failed.lines()


def test_as_data_it_is_json() -> None:
    told = Play().report(1)
    assert json.loads(json.dumps(asdict(told)))["trial"] == 0
    assert told.lines()[0].startswith("trial 0 is running at step 1")


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
    assert list(told.story) == sorted(told.story, key=lambda moment: moment.at)
    assert json.loads(json.dumps(asdict(told)))["moves_when"] == told.moves_when
    assert all(isinstance(line, str) for line in told.lines())


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


def test_a_person_holds_it() -> None:
    script = stages.pausing().asked("pause", 0).drop().wants(Start(1)).exited(0, saved=2).drop()
    assert explain(script.state, script.policy, 0).moves_when == "a person unpauses the trial"


def test_standings_are_ranks_and_metrics_in_rungs() -> None:
    policy = policies.make("asha", {"r": 1, "R": 16, "eta": 2.0})
    script = Script(devices=3, policy=policy, max_trials=3, mode="min").start().drop()
    for trial, loss in ((0, 0.5), (1, 0.3), (2, None)):
        script.report(trial, loss).drop()
    found = [explain(script.state, policy, trial).standings for trial in range(3)]
    assert found == [
        (RungRank(1, 2, 3, 0.5),),
        (RungRank(1, 1, 3, 0.3),),
        (RungRank(1, 3, 3, None),),
    ]
    data = asdict(explain(script.state, policy, 0))
    assert data["standings"] == ({"milestone": 1, "rank": 2, "of": 3, "metric": 0.5},)


def test_nobody_knows_it() -> None:
    script = stages.running()
    with pytest.raises(KeyError):
        explain(script.state, script.policy, 9)

"""One line an event, in words and as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from gpusched.core.decisions import Start
from gpusched.core.events import (
    DaemonResumed,
    Event,
    LimitsMoved,
    Outcome,
    Suggested,
    TimerFired,
    TrialExited,
    UserAsked,
)
from gpusched.dashboard import lines
from tests.core import stages
from tests.dashboard.scene import Scene
from tests.faults import Incident
from tests.helpers import Script


class Told:
    """A scene, and what was told of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.records: list[lines.Record] = []
        self.lines: list[str] = []
        (event, commands), handle = scene.seen[0], scene.experiment.handle
        self._tell(event, commands)

        def handle_and_tell(event: Event) -> list[object]:
            was_over = scene.experiment.state.finished
            commands = handle(event)
            self._tell(event, commands, is_end=scene.experiment.state.finished and not was_over)
            return commands

        scene.experiment.handle = handle_and_tell

    def _tell(self, event: Event, commands: list[object], *, is_end: bool = False) -> None:
        state = self.scene.experiment.state
        found = lines.records(event, commands, state, "accuracy", is_end=is_end)
        assert json.loads(json.dumps(found)) == found
        self.records += found
        self.lines += [lines.line(record) for record in found]

    def last(self, what: str) -> lines.Record:
        return [record for record in self.records if record["what"] == what][-1]


def test_a_search_in_lines() -> None:
    told = Told(Scene(deadline_s=20, fails=(0,)))
    told.scene.play()
    assert told.lines[0] == "     0.0 s  the search begins on 4 atoms; deadline in 20 s"
    told_of = "\n".join(told.lines)
    for pattern in (
        r"0.0 s  trial 0 starts on 1 atom: lr=0.001345 width=64 optimizer.name=sgd optimizer.decay=0.001",
        r"0.\d s  new best: accuracy 0.\d{4}, trial \d at step 1",
        r"trial \d+ pauses: \d+\w\w of \d+ at rung \d+, cut-off 0.\d+",
        r"trial \d+ grows 1 -> \d: \d+ more steps before the deadline",
        r"trial \d+ continues from step \d+ on \d atoms \(launch 2\)",
        r"over \(.*\): \d+ trials, best 0.\d{4} by trial \d+$",
    ):
        assert re.search(pattern, told_of), pattern
    assert len(told.lines) == len(told.records)
    assert len(told.lines) == len(set(told.lines))
    counts = Counter(record["what"] for record in told.records)
    assert counts["starts"] == len(told.scene.experiment.state.trials)
    # Quiet: many fewer lines than events, though steps are as quick as in no real search.
    assert len(told.lines) < len(told.scene.seen) / 2
    failed = told.last("failed")
    assert failed["error"] == "ValueError: trial 0 cannot be: loss is negative"
    assert failed["text"] == f"trial 0 failed at step 1: {failed['error']}"
    decided = [record for record in told.records if record["what"] == "decided"]
    grows = next(record for record in decided if record["then"] == "resize")
    assert grows["atoms"] > 1
    pauses = next(record for record in decided if record["then"] == "paused")
    assert pauses["reason"].startswith("pauses: ")
    assert {"at", "what", "text", "trial", "step"} <= set(pauses)


@pytest.mark.parametrize(
    ("stage", "outcome", "told"),
    [
        ("waiting", "failed", "failed on 2 atoms, goes back to 1 and grows no more: train.py:3"),
        ("running", "failed", "failed at step 1: train.py:3; continues from step 1"),
        ("pausing", "failed", "failed at step 2: train.py:3; continues from step 1"),
        ("running", "lost", "train.py:3; continues from step 1"),
    ],
)
def test_a_failure_is_told_with_what_follows(stage: str, outcome: Outcome, told: str) -> None:
    script = stages.STAGES[stage]().released("d0").drop()
    script.exited(0, outcome, error="train.py:3\nTraceback")
    text = next(one["text"] for one in lines.records(script.events[-1], (), script.state))
    assert text == f"trial 0: {told}"


def test_an_old_incarnation_is_no_news() -> None:
    script = stages.waiting().wait(1.0).exited(0, "failed", incarnation=0, error="old")
    assert lines.records(script.events[-1], script.take(), script.state) == []
    event = TrialExited(at=script.now, trial=9999, incarnation=1, outcome="failed", error="unknown")
    assert lines.records(event, script.experiment.handle(event), script.state) == []


def test_devices_daemons_and_people() -> None:
    broken = Incident(at=5.0, kind="quarantine", device="cpu:1", reason="held by python (pid 9)")
    mended = Incident(at=5.5, kind="readmit", device="cpu:1")
    told = Told(Scene(incidents=(broken, mended)))
    told.scene.play(5.1)
    assert told.last("quarantined")["text"] == "cpu:1 is quarantined: held by python (pid 9)"
    assert "cpu:1 was lost" in told.last("killed")["text"]
    told.scene.play(8)
    assert told.last("readmitted")["device"] == "cpu:1"
    told.scene.tell(DaemonResumed(at=8.0, epoch=2, unusable={"cpu:2": "it is gone"}))
    assert told.last("daemon")["text"] == "daemon 2 took over"
    assert told.last("quarantined")["text"] == "cpu:2 is quarantined: it is gone"
    told.scene.tell(LimitsMoved(at=8.0, deadline_s=70.0, target=None))
    assert told.last("moved")["text"] == "the limits are moved: 1 min 02 s left"
    told.scene.tell(UserAsked(at=8.0, verb="pause", trial=0))
    assert told.last("asked")["text"] == "asked to pause trial 0"
    told.scene.tell(UserAsked(at=8.0, verb="try", hparams={"lr": 0.1}))
    assert told.last("said")["text"] == "asked to try lr=0.1"
    told.scene.experiment.state.configurations.asked_for = 3
    told.scene.tell(Suggested(at=8.0, n=3, hparams=None, by="random", why="Mine failed"))
    assert told.last("said")["text"] == "configuration 3 is drawn at random: Mine failed"
    told.scene.tell(UserAsked(at=8.1, verb="stop"))
    assert told.last("asked")["text"] == "asked to stop the search"
    told.scene.play()
    assert told.last("over")["text"].startswith("over (stopped by the user): ")


def test_the_deadline_is_one_line_however_many_leave() -> None:
    told = Told(Scene(deadline_s=5, policy="fifo"))
    told.scene.play()
    at_the_end = [record["what"] for record in told.records if record["at"] >= 5]
    assert at_the_end.count("deadline") == 1
    assert "stopped" not in at_the_end
    assert at_the_end[-1] == "over"


def test_the_end_of_each_trial_is_told_once() -> None:
    """Half of them are not up at the deadline and are killed then, the others when they miss the last call."""
    script = Script(devices=4, deadline_s=100.0)
    script.wants(*(Start(1) for _ in range(4))).start().drop()
    for trial in range(2):
        script.report(trial, 0.5).drop()
    told: list[lines.Record] = []
    for timer, wait_s in (("deadline", 100.0), ("last call", 1.5)):
        script.wait(wait_s).feed(event := TimerFired(at=script.now, timer=timer))
        told += lines.records(event, script.take(), script.experiment.state)
    killed = [record["text"] for record in told if record["what"] == "killed"]
    assert killed == [
        *(f"trial {number} is killed: deadline" for number in (2, 3)),
        *(f"trial {number} is killed: did not leave in time" for number in (0, 1)),
    ]


def test_a_trial_that_is_cancelled_twice_over_is_told_once() -> None:
    script = Script(deadline_s=100.0).wants(Start(1)).start().drop()
    told: list[lines.Record] = []
    for verb in ("cancel", "kill"):
        script.wait(1.0).feed(event := UserAsked(at=script.now, verb=verb))
        told += lines.records(event, script.take(), script.experiment.state)
    killed = [record["text"] for record in told if record["what"] == "killed"]
    assert killed == ["trial 0 is killed: cancelled by the user"]

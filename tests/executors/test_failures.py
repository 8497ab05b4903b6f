"""Trials that end badly or hang: the first cause is told, others are not waited for, a last word outranks codes."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from gpusched.core.commands import Kill
from gpusched.core.events import Reported
from gpusched.executors.local.incarnation import Incarnation
from gpusched.processes.stacks import Whereabouts, describe
from gpusched.protocol import Remark
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import report_of, the_exit
from tests.executors.test_ranks import play
from tests.executors.test_trees import begin


def test_the_daemon_is_told_that_a_disk_has_refused_a_checkpoint(lab: Lab) -> None:
    told: list[str] = []
    object.__setattr__(lab.shared.setting, "refused", lambda: told.append("refused"))
    Incarnation(lab.shared, 77, 1, (), lab.paths.trial(77))._said(Remark("no room", full=True))
    assert told == ["refused"]


def test_a_rank_that_aborts_after_the_last_word_has_not_failed(lab: Lab) -> None:
    trial, ending = play(lab, "abort_at_exit", atoms=4)
    assert (ending.outcome, ending.saved_step, ending.error) == ("yielded", 4, None)
    codes = wait_for(lab.logs(trial) / "exit.json")["codes"]
    assert set(codes.values()) == {-signal.SIGABRT}


def test_a_script_may_tidy_up_after_the_last_word(lab: Lab) -> None:
    """Such a script had 2 s, and was killed without a word."""
    trial, ending = play(lab, "linger_after_last_word", atoms=2, tidy_s=2.5)
    assert (ending.outcome, ending.saved_step) == ("yielded", 4)
    assert all((lab.trial_folder(trial) / f"tidied-{rank}").exists() for rank in range(2))


def test_ranks_that_linger_after_the_last_word_are_told_and_ended_and_it_is_said(
    lab: Lab,
) -> None:
    leaves_at_once = dataclasses.replace(lab.recipe, leave_grace_s=0.1)
    object.__setattr__(lab.executor.shared.setting, "recipe", leaves_at_once)
    try:
        trial, ending = play(lab, "linger_after_last_word", atoms=2)
    finally:
        object.__setattr__(lab.executor.shared.setting, "recipe", lab.recipe)
    assert (ending.outcome, ending.saved_step) == ("yielded", 4)
    assert (lab.trial_folder(trial) / "told").exists(), "SIGTERM comes first"
    assert lab.left_of(trial) == []
    assert any("had not ended 0.1 s after its last checkpoint" in said for said in lab.said)


def frames(*metrics: object) -> list[dict[str, object]]:
    return [{"kind": "report", "i": 1, "n": n, "k": n, "m": m} for n, m in enumerate(metrics, 1)]


def test_metrics_are_told_as_they_are_and_a_number_once(lab: Lab) -> None:
    rig = lab.rig
    told: list[object] = [{"accuracy": 2}, {"accuracy": "nan", "loss": 1.5}, {"loss": 0.5}]
    sent = [*frames(*told), *frames({"accuracy": 0.9})]
    trial = rig.begin(scenario="speak_nonsense", frames=sent)
    reports = [event for event in rig.run(trial) if isinstance(event, Reported)]
    assert [event.metric for event in reports] == [2.0, None, None]
    assert [event.report.metrics for event in reports] == told


# ---------------------------------------------------------------- hangs: it is said which rank was stuck where


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        ({"stuck": 1}, "rank 1 is stuck at scenarios.py:{line} in wait_for_ever"),
        ({"stuck": 1, "stops": True}, "rank 1 is not answering; the others wait for it"),
        ({"stuck": 0}, "rank 0 is stuck at scenarios.py:{line} in wait_for_ever"),
    ],
)
def test_the_stuck_rank_is_named(lab: Lab, hparams: dict, expected: str) -> None:
    trial = begin(lab, "stuck_rank", atoms=2, **hparams)
    lab.rig.watch(report_of(trial, 1))
    wait_for(lab.trial_folder(trial) / "stuck")
    lab.executor.execute(Kill(trial, 1, 1.0, stacks=True))
    ending = the_exit(lab.rig.run(trial), trial)
    assert ending.outcome == "killed"
    source = lab.recipe.script.read_text().splitlines()
    at = source.index("def wait_for_ever() -> None:")
    line = next(n for n, text in enumerate(source[at:], at + 1) if "sleep" in text)
    assert ending.error.startswith(expected.format(line=line))
    for rank in range(2):
        if not (hparams.get("stops") and rank == 1):
            stacks = (lab.logs(trial) / f"stacks-{rank}.txt").read_text()
            assert "scenarios.py" in stacks
    assert lab.left_of(trial) == []


WAITS = Whereabouts("train.py:9 in step", waits=True)
BUSY = Whereabouts("train.py:5 in load")


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({0: WAITS, 1: BUSY}, "rank 1 is stuck at train.py:5 in load; the others wait for it"),
        ({0: WAITS, 1: WAITS}, "ranks 0, 1 are stuck at train.py:9 in step"),
        ({0: BUSY}, "rank 0 is stuck at train.py:5 in load"),
        ({0: WAITS, 1: Whereabouts("")}, "rank 1 is not answering; the others wait for it"),
        ({0: Whereabouts("")}, ""),
        ({}, ""),
    ],
)
def test_in_words(places: dict[int, Whereabouts], expected: str) -> None:
    assert describe(places) == expected

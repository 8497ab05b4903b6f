"""A trial that hangs is ended, and it is said which rank was stuck where; the stacks of all are in its logs."""

from __future__ import annotations

import faulthandler

import pytest

from gpusched.core.decisions import Kill
from gpusched.processes.stacks import Whereabouts, describe, place_of
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import report_of, the_exit
from tests.executors.test_trees import begin


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        ({"stuck": 1}, "rank 1 is stuck at scenarios.py:{line} in wait_for_ever"),
        ({"stuck": 1, "stops": True}, "rank 1 is stopped (SIGSTOP)"),
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
    assert ending.error is not None
    assert ending.error.startswith(expected.format(line=line))
    for rank in range(2):
        if not (hparams.get("stops") and rank == 1):
            stacks = (lab.logs(trial) / f"stacks-{rank}.txt").read_text()
            assert "scenarios.py" in stacks
    assert lab.left_of(trial) == []


def test_a_kill_for_another_reason_takes_no_stacks(lab: Lab) -> None:
    trial = begin(lab, "graceful")
    wait_for(lab.trial_folder(trial) / "ready-0")
    lab.executor.execute(Kill(trial, 1, 5.0))
    ending = the_exit(lab.rig.run(trial), trial)
    assert (ending.outcome, ending.error) == ("killed", None)
    assert (lab.logs(trial) / "stacks-0.txt").read_text() == ""


def test_what_faulthandler_writes_is_understood(tmp_path) -> None:
    path = tmp_path / "stacks"
    with path.open("w") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
    place = place_of(path.read_text())
    assert place.frame.startswith("test_hangs.py:")
    assert place.frame.endswith("in test_what_faulthandler_writes_is_understood")
    assert not place.waits


WAITS = Whereabouts("train.py:9 in step", waits=True)
BUSY = Whereabouts("train.py:5 in load")


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({0: WAITS, 1: BUSY}, "rank 1 is stuck at train.py:5 in load; the others wait for it"),
        ({0: WAITS, 1: WAITS}, "ranks 0, 1 are stuck at train.py:9 in step"),
        ({0: BUSY}, "rank 0 is stuck at train.py:5 in load"),
        ({0: BUSY, 1: Whereabouts("", stopped=True)}, "rank 1 is stopped (SIGSTOP)"),
        ({0: Whereabouts("")}, ""),
        ({}, ""),
    ],
)
def test_in_words(places: dict[int, Whereabouts], expected: str) -> None:
    assert describe(places) == expected

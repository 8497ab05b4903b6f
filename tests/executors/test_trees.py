"""Process trees that do not want to go: none may survive, and each is told killed or what else it came to."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from gpusched.core.decisions import Kill, Launch
from gpusched.core.events import TrialExited
from gpusched.processes.identity import start_time
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import the_exit
from tests.executors.test_ranks import play
from tests.rig import wait_until


def begin(lab: Lab, scenario: str, atoms: int = 1, **hparams: object) -> int:
    rig = lab.rig
    trial = rig.new_trial()
    rig.executor.execute(Launch(trial, 1, rig.devices[:atoms], {"scenario": scenario, **hparams}))
    wait_until(
        lambda: rig.executor.poll(rig.executor.now() + 0.02) is None or is_launched(lab, trial)
    )
    return trial


def is_launched(lab: Lab, trial: int) -> bool:
    it = lab.roster.current.get(trial)
    return it is None or it.shim is not None


def kill(lab: Lab, trial: int, grace_s: float) -> tuple[TrialExited, float]:
    began_s = time.monotonic()
    lab.executor.execute(Kill(trial, 1, grace_s))
    ending = the_exit(lab.rig.run(trial), trial)
    return ending, time.monotonic() - began_s


@pytest.mark.parametrize("count", [2, 16])
def test_orphans_do_not_outlive_a_trial_that_finishes(lab: Lab, count: int) -> None:
    trial, ending = play(lab, "orphans", count=count)
    assert ending.outcome == "finished"
    orphans = [wait_for(path) for path in lab.trial_folder(trial).glob("orphan-*")]
    assert orphans
    assert [pid for pid in orphans if start_time(pid)] == []
    assert lab.left_of(trial) == []


def test_orphans_do_not_outlive_a_kill(lab: Lab) -> None:
    trial = begin(lab, "orphans", atoms=2, count=4, stay=True)
    wait_for(lab.trial_folder(trial) / "ready")
    ending, _ = kill(lab, trial, 0.2)
    assert ending.outcome == "killed"
    assert lab.left_of(trial) == []


def test_sigterm_ignored(lab: Lab) -> None:
    trial = begin(lab, "stubborn", atoms=2)
    pids = [wait_for(lab.trial_folder(trial) / f"ready-{rank}") for rank in range(2)]
    ending, took_s = kill(lab, trial, 0.5)
    assert ending.outcome == "killed"
    assert took_s >= 0.5
    assert not any(map(start_time, pids))
    assert lab.left_of(trial) == []


def test_a_stopped_rank_is_killed(lab: Lab) -> None:
    trial = begin(lab, "stopped", atoms=2)
    pids = [wait_for(lab.trial_folder(trial) / f"ready-{rank}") for rank in range(2)]
    ending, _ = kill(lab, trial, 0.2)
    assert ending.outcome == "killed"
    assert not any(map(start_time, pids))


def test_a_rank_may_tidy_up_within_the_grace(lab: Lab) -> None:
    trial = begin(lab, "graceful")
    wait_for(lab.trial_folder(trial) / "ready-0")
    ending, _ = kill(lab, trial, 600.0)  # longer than this test waits
    assert ending.outcome == "killed"
    wait_for(lab.trial_folder(trial) / "tidied")


def test_a_second_kill_with_less_grace_shortens_the_first(lab: Lab) -> None:
    trial = begin(lab, "stubborn")
    wait_for(lab.trial_folder(trial) / "ready-0")
    lab.executor.execute(Kill(trial, 1, 600.0))
    lab.executor.poll(lab.executor.now() + 0.1)
    ending, _ = kill(lab, trial, 0.1)
    assert ending.outcome == "killed"


def test_a_shim_that_is_killed_takes_its_tree_along(lab: Lab) -> None:
    trial = begin(lab, "orphans", atoms=2, count=4, stay=True)
    wait_for(lab.trial_folder(trial) / "ready")
    shim = wait_for(lab.logs(trial) / "shim.json")["pid"]
    os.kill(shim, signal.SIGKILL)
    ending = the_exit(lab.rig.run(trial), trial)
    assert ending.outcome == "lost"
    assert ending.error == "its shim died (SIGKILL)"
    assert lab.left_of(trial) == []


def test_a_stopped_shim_is_killed_when_its_patience_is_over(lab: Lab) -> None:
    trial = begin(lab, "stubborn")
    wait_for(lab.trial_folder(trial) / "ready-0")
    shim = wait_for(lab.logs(trial) / "shim.json")["pid"]
    os.kill(shim, signal.SIGSTOP)
    it = lab.roster.current[trial]
    lab.executor.execute(Kill(trial, 1, 0.1))
    lab.executor.poll(lab.executor.now() + 0.2)
    assert lab.roster.current[trial] is it, "a stopped shim does not answer"
    lab.executor.stopping.kill_shim(it)  # what the timer does after kill_margin_s
    assert the_exit(lab.rig.run(trial), trial).outcome == "killed"
    assert lab.left_of(trial) == []


def test_a_shim_that_sleeps_before_it_has_ranks_is_killed(lab: Lab) -> None:
    trial = begin(lab, "stubborn")
    wait_for(lab.trial_folder(trial) / "ready-0")
    record = wait_for(lab.logs(trial) / "shim.json")
    os.kill(record["pid"], signal.SIGSTOP)
    it = lab.roster.current[trial]
    lab.executor.stopping.expect_ranks(it)  # what the timer does after birth_limit_s
    assert start_time(record["pid"]), "it has its ranks: they train on while it sleeps"
    (lab.logs(trial) / "shim.json").write_text(json.dumps({**record, "ranks": []}))
    lab.executor.stopping.expect_ranks(it)
    ending = the_exit(lab.rig.run(trial), trial)
    assert (ending.outcome, ending.error) == ("lost", "its shim died (SIGKILL)")
    assert lab.left_of(trial) == []


def test_a_rank_killed_from_outside_while_a_kill_is_under_way_is_killed(lab: Lab) -> None:
    trial = begin(lab, "stubborn", atoms=2)
    pid = wait_for(lab.trial_folder(trial) / "ready-1")
    wait_for(lab.trial_folder(trial) / "ready-0")
    lab.executor.execute(Kill(trial, 1, 0.5))
    os.kill(pid, signal.SIGKILL)
    ending = the_exit(lab.rig.run(trial), trial)
    assert ending.outcome in ("killed", "failed")
    assert lab.left_of(trial) == []

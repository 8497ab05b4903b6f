"""Process trees that do not want to go: none may survive, and each is told killed or what else it came to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpusched.core.commands import Kill
from gpusched.core.events import TrialExited
from gpusched.processes.identity import start_time
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import the_exit
from tests.executors.test_ranks import play
from tests.rig import wait_until
from tests.torture.bed import times


def begin(lab: Lab, scenario: str, **more: Any) -> int:
    rig = lab.rig
    trial = rig.begin(scenario=scenario, **more)
    wait_until(
        lambda: rig.executor.poll(rig.executor.now() + 0.02) is None or is_launched(lab, trial)
    )
    return trial


def is_launched(lab: Lab, trial: int) -> bool:
    it = lab.shared.current.get(trial)
    return it is None or it.shim is not None


def kill(lab: Lab, trial: int, grace_s: float) -> TrialExited:
    lab.executor.execute(Kill(trial, 1, grace_s))
    return the_exit(lab.rig.run(trial), trial)


@pytest.mark.parametrize("count", [2, 16])
def test_orphans_do_not_outlive_a_trial_that_finishes(lab: Lab, count: int) -> None:
    trial, ending = play(lab, "orphans", count=count)
    assert ending.outcome == "finished"
    orphans = [wait_for(path) for path in lab.trial_folder(trial).glob("orphan-*")]
    assert orphans
    assert [pid for pid in orphans if start_time(pid)] == []
    assert lab.left_of(trial) == []


def test_sigterm_ignored_until_a_second_kill_shortens_the_grace(lab: Lab) -> None:
    trial = begin(lab, "stubborn", atoms=2)
    pids = [wait_for(lab.trial_folder(trial) / f"ready-{rank}") for rank in range(2)]
    began_at = lab.executor.now()
    lab.executor.execute(Kill(trial, 1, 600.0))
    lab.executor.poll(lab.executor.now() + 0.1)
    ending = kill(lab, trial, 0.5)
    assert ending.outcome == "killed"
    assert ending.at >= began_at + 0.5
    assert not any(map(start_time, pids))
    assert lab.left_of(trial) == []


def test_a_rank_may_tidy_up_within_the_grace(lab: Lab) -> None:
    trial = begin(lab, "graceful")
    wait_for(lab.trial_folder(trial) / "ready-0")
    ending = kill(lab, trial, 600.0)  # longer than this test waits
    assert (ending.outcome, ending.error) == ("killed", None)
    assert (lab.logs(trial) / "stacks-0.txt").read_text() == "", "it did not hang"
    wait_for(lab.trial_folder(trial) / "tidied")


def test_a_stopped_shim_is_killed_when_its_patience_is_over(lab: Lab) -> None:
    trial = begin(lab, "stubborn")
    wait_for(lab.trial_folder(trial) / "ready-0")
    shim = wait_for(lab.logs(trial) / "shim.json")["shim"][0]
    os.kill(shim, signal.SIGSTOP)
    it = lab.shared.current[trial]
    lab.executor.execute(Kill(trial, 1, 0.1))
    lab.executor.poll(lab.executor.now() + 0.2)
    assert lab.shared.current[trial] is it, "a stopped shim does not answer"
    it.kill_shim()  # what the timer does after kill_margin_s
    assert the_exit(lab.rig.run(trial), trial).outcome == "killed"
    assert lab.left_of(trial) == []


# ---------------------------------------------------------------- every trick at once (reliability T7)


AT_ONCE = 4


def kill_trees(lab: Lab, seeds: Sequence[int]) -> None:
    """Have trees with these seeds grow, or end by themselves; when the end of each is told nothing is left of it."""
    trials = {lab.rig.begin(scenario="hostile", seed=seed): seed for seed in seeds}
    ended: set[int] = set()

    def have_come_to(is_there: Callable[[int], bool]) -> bool:
        for event in lab.executor.poll(lab.executor.now() + 0.02):
            if isinstance(event, TrialExited):
                ended.add(event.trial)
        return all(trial in ended or is_there(trial) for trial in trials)

    wait_until(lambda: have_come_to(lambda trial: (lab.trial_folder(trial) / "ready").exists()))
    for trial in trials:
        lab.executor.execute(Kill(trial, 1, 0.0))
    wait_until(lambda: have_come_to(lambda _trial: False))
    for trial, seed in trials.items():
        assert lab.left_of(trial) == [], f"survivors of the tree with seed {seed}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [8, pytest.param(times(1000), marks=pytest.mark.slow)])
def test_hostile_trees(lab: Lab, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        kill_trees(lab, range(first, min(first + AT_ONCE, count)))

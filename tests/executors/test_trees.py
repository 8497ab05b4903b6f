"""Process trees that do not want to go: none may survive, and each is told killed or what else it came to."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

import pytest

from gpusched.core.commands import Kill, Launch
from gpusched.core.events import TrialExited
from gpusched.processes.identity import start_time
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import the_exit
from tests.executors.test_ranks import play
from tests.rig import wait_until
from tests.torture.bed import percentile, times


def begin(lab: Lab, scenario: str, atoms: int = 1, **hparams: object) -> int:
    rig = lab.rig
    trial = rig.new_trial()
    rig.executor.execute(Launch(trial, 1, rig.devices[:atoms], {"scenario": scenario, **hparams}))
    wait_until(
        lambda: rig.executor.poll(rig.executor.now() + 0.02) is None or is_launched(lab, trial)
    )
    return trial


def is_launched(lab: Lab, trial: int) -> bool:
    it = lab.shared.current.get(trial)
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


def test_sigterm_ignored(lab: Lab) -> None:
    trial = begin(lab, "stubborn", atoms=2)
    pids = [wait_for(lab.trial_folder(trial) / f"ready-{rank}") for rank in range(2)]
    ending, took_s = kill(lab, trial, 0.5)
    assert ending.outcome == "killed"
    assert took_s >= 0.5
    assert not any(map(start_time, pids))
    assert lab.left_of(trial) == []


def test_a_rank_may_tidy_up_within_the_grace(lab: Lab) -> None:
    trial = begin(lab, "graceful")
    wait_for(lab.trial_folder(trial) / "ready-0")
    ending, _ = kill(lab, trial, 600.0)  # longer than this test waits
    assert (ending.outcome, ending.error) == ("killed", None)
    assert (lab.logs(trial) / "stacks-0.txt").read_text() == "", "it did not hang"
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
    it = lab.shared.current[trial]
    lab.executor.execute(Kill(trial, 1, 0.1))
    lab.executor.poll(lab.executor.now() + 0.2)
    assert lab.shared.current[trial] is it, "a stopped shim does not answer"
    it.kill_shim()  # what the timer does after kill_margin_s
    assert the_exit(lab.rig.run(trial), trial).outcome == "killed"
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


# ---------------------------------------------------------------- every trick at once (reliability T7)


AT_ONCE = 4


@dataclass
class Loop:
    """Turns the executor's loop as the daemon does, and measures how long one turn works."""

    lab: Lab
    turns_s: list[float] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)

    def turn(self) -> None:
        executor = self.lab.executor
        worked_s = time.thread_time()
        for event in executor.poll(executor.now() + 0.02):
            if isinstance(event, TrialExited):
                self.ended[event.trial] = time.monotonic()
        self.turns_s.append(time.thread_time() - worked_s)


def kill_trees(lab: Lab, count: int, seed: int) -> tuple[float, float]:
    """The longest it took until a tree had gone, and the longest that one turn of the loop worked, in seconds."""
    print(f"seed {seed}")
    loop, gone_s = Loop(lab), []
    for first in range(0, count, AT_ONCE):
        trials = {lab.rig.new_trial(): seed + n for n in range(first, min(first + AT_ONCE, count))}
        for trial, tree_seed in trials.items():
            hparams = {"scenario": "hostile", "seed": tree_seed}
            lab.executor.execute(Launch(trial, 1, lab.rig.devices[:1], hparams))
        wait_for_all(lab, loop, trials)
        killed_at = {trial: time.monotonic() for trial in trials}
        for trial in trials:
            lab.executor.execute(Kill(trial, 1, 0.0))
        wait_until(lambda t=trials: loop.turn() or all(n in loop.ended for n in t))
        for trial, tree_seed in trials.items():
            left = lab.left_of(trial)
            assert left == [], f"survivors of the tree with seed {tree_seed}: {left}"
            gone_s.append(max(0.0, loop.ended[trial] - killed_at[trial]))
    print(
        f"{count} trees; no survivor after at most {max(gone_s):.2f} s (median {percentile(gone_s, 0.5):.2f}, "
        f"p99 {percentile(gone_s, 0.99):.2f}); longest work of one turn of the loop {max(loop.turns_s) * 1000:.0f} ms"
    )
    return max(gone_s), max(loop.turns_s)


def wait_for_all(lab: Lab, loop: Loop, trials: dict[int, int]) -> None:
    """Until every tree has grown, or has ended by itself."""
    until = time.monotonic() + 60
    while True:
        loop.turn()
        late = {
            trial: seed
            for trial, seed in trials.items()
            if trial not in loop.ended and not (lab.trial_folder(trial) / "ready").exists()
        }
        if not late:
            return
        for trial, seed in late.items():
            assert time.monotonic() < until, f"seed {seed}: {lab.left_of(trial)}, {lab.said}"


def test_hostile_trees(lab: Lab) -> None:
    kill_trees(lab, 8, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_hostile_trees(lab: Lab) -> None:
    gone_s, turn_s = kill_trees(lab, times(1000), seed=10_000)
    assert gone_s < 5.0
    assert turn_s < 0.1

"""Process trees with every trick at once: none survives, soon, and the loop is never held up (reliability T7)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from gpusched.core.decisions import Kill, Launch
from gpusched.core.events import TrialExited
from tests.executors.conftest import Lab
from tests.rig import wait_until
from tests.torture.bed import percentile, times

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

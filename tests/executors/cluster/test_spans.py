"""Trials whose ranks are on several nodes: resized by checkpoint, and shrunk when a node is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from gpusched.core.commands import ConfirmRelease, Kill, Launch, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DeviceQuarantined,
    DevicesReleased,
    Event,
    Reported,
    TrialExited,
)
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import is_alive
from tests.executors.cluster.bed import Bed
from tests.executors.contract import the_exit

TRAIN = """\
import time
import gpusched

trial = gpusched.init()
trial.track()
for step in trial.steps(10_000):
    time.sleep(0.02)
    if trial.rank == trial.hparams.fails_at:
        raise ValueError("wrong")
    trial.report(accuracy=trial.mean(trial.rank + 1.0, 1.0), ranks=trial.world_size)
"""
WIDE = ("node0/cpu:0", "node0/cpu:1", "node1/cpu:0")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("cluster"), lost_s=4.0, script=TRAIN)
    yield bed
    bed.close()


def launch(bed: Bed, trial: int, number: int, devices: tuple[str, ...]) -> int:
    """Launch a trial and see the first report of all of its ranks; return the step."""
    bed.rig.executor.execute(Launch(trial, number, devices, {"fails_at": -1}))
    report = bed.rig.watch(lambda event: reports(event, trial, number))[-1]
    assert isinstance(report, Reported)
    size = len(devices)
    assert (report.report.metrics["ranks"], report.metric) == (size, (size + 1) / 2)
    return report.step


def reports(event: Event, trial: int, number: int) -> bool:
    return isinstance(event, Reported) and (event.trial, event.incarnation) == (trial, number)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events if not isinstance(event, Reported | CheckpointSaved)]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_fails_ends_the_trial_on_all_nodes_with_its_error(bed: Bed, rank: int) -> None:
    bed.rig.executor.execute(Launch(trial := bed.rig.new_trial(), 1, WIDE, {"fails_at": rank}))
    ending = the_exit(bed.rig.run(trial), trial)
    assert ending.outcome == "failed"
    assert (ending.error or "").startswith(f"rank {rank}: ValueError: train.py:9: wrong")
    for part in (0, 1):
        claim = read_claim(bed.paths.trial(trial, part).shim(1))
        assert not any(map(is_alive, claim.ranks)), "ended before the end is told"


def test_a_trial_spans_nodes_is_resized_by_checkpoint_and_shrinks_as_a_node_is_lost(
    bed: Bed,
) -> None:
    trial = bed.rig.new_trial()
    assert launch(bed, trial, 1, WIDE) == 1
    logs = bed.paths.trial(trial).logs(1)

    assert all((logs / f"rank-{rank}.out").exists() for rank in range(3)), "by the trial's ranks"
    bed.rig.executor.execute(Yield(trial, 1, save=True))
    yielded = the_exit(bed.rig.run(trial), trial)
    assert yielded.outcome == "yielded"
    assert yielded.step == yielded.saved_step is not None

    bed.rig.executor.execute(ConfirmRelease(WIDE))
    released: set[str] = set()
    bed.rig.watch(
        lambda event: (
            isinstance(event, DevicesReleased)
            and (released.update(event.devices) or released == set(WIDE))
        )
    )
    assert launch(bed, trial, 2, WIDE[:2]) == yielded.step + 1
    bed.rig.executor.execute(Yield(trial, 2, save=True))
    saved = the_exit(bed.rig.run(trial), trial).saved_step
    assert saved is not None

    first_lost = ("node1/cpu:0", *WIDE[:2])
    assert launch(bed, trial, 3, first_lost) == saved + 1
    bed.signal(bed.all_pids("node1"), signal.SIGKILL)
    bed.hold_back("node1")
    events = bed.rig.run(trial)
    assert kinds(events)[-3:] == [DeviceQuarantined, DeviceQuarantined, TrialExited]
    lost = the_exit(events, trial)
    assert (lost.outcome, lost.error) == ("lost", "node node1 was lost")
    assert launch(bed, trial, 4, WIDE[:2]) == saved + 1
    bed.rig.executor.execute(Kill(trial, 4, 0.0))
    assert the_exit(bed.rig.run(trial), trial).outcome == "killed"
    bed.let_start()

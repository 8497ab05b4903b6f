"""Ranks find and leave what they would under torchrun; each is a process of its own."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.events import TrialExited
from tests.executors.conftest import Lab, listening_addresses, of_trial, wait_for
from tests.executors.contract import report_of, steps_of, the_exit


def play(lab: Lab, scenario: str, **more: Any) -> tuple[int, TrialExited]:
    trial = lab.rig.begin(scenario=scenario, **more)
    return trial, the_exit(lab.rig.run(trial), trial)


def test_what_a_rank_sees_and_leaves(lab: Lab) -> None:
    trial, ending = play(lab, "inspect_rank", atoms=4, names=["OMP_NUM_THREADS", "PET_LOG_DIR"])
    assert ending.outcome == "finished"
    seen = [wait_for(lab.trial_folder(trial) / f"seen-{rank}") for rank in range(4)]
    cores, hard = sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for rank, one in enumerate(seen):
        assert one["cwd"] == str(lab.folder)
        assert one["env"] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
            "PET_LOG_DIR": None,
        }
        assert one["cpus"] == (cores if len(cores) > 4 else [cores[rank % len(cores)]])
        assert one["session"]
        assert one["sigterm"]
        assert (one["stdin"], one["threads"], one["torch_threads"]) == ("", 1, 1)
        assert one["file_limit"] == min(hard, 65_536), "1024 are too few for data loaders"
        assert not one["cuda"]
        assert one["title"] == f"gpusched: trial {trial}.1 rank {rank}"
        sockets = [name for name in one["open"] if name.startswith(("socket", "pipe", "anon"))]
        assert sockets == [], "a rank must not hold what belongs to its shim or the server"
        assert (lab.logs(trial) / f"rank-{rank}.out").read_text() == "to stdout\n"
        assert (lab.logs(trial) / f"rank-{rank}.err").read_text() == "to stderr\n"
        assert (lab.trial_folder(trial) / f"unclosed-{rank}").read_text() == "flushed at exit"
    assert len({one["random"] for one in seen}) == 4
    assert (lab.logs(trial) / "rank-0.out").stat().st_mode & 0o777 == 0o600


def train_on_loopback(lab: Lab, ranks: int, **more: object) -> tuple[int, TrialExited]:
    """Have a trial train three steps, and see that it listens on the loopback alone."""
    rig = lab.rig
    trial = rig.begin(atoms=ranks, steps=3, **more)
    events = rig.watch(report_of(trial, 1), hold=True)
    assert listening_addresses(of_trial(lab.folder, trial)) == {"0100007F"}, "as /proc/net has it"
    lab.executor.acknowledge(events[-1])
    events += rig.run(trial)
    assert steps_of(events, trial) == [1, 2, 3]
    assert lab.left_of(trial) == []
    return trial, the_exit(events, trial)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ddp_steps_over_gloo_listening_on_loopback_alone(lab: Lab, ranks: int) -> None:
    _, ending = train_on_loopback(lab, ranks, ddp=True)
    assert (ending.outcome, ending.saved_step) == ("finished", 3)


def test_a_script_that_knows_nothing_of_gpusched_finishes_without_a_step(lab: Lab) -> None:
    trial, ending = play(lab, "finish", atoms=2)
    assert (ending.outcome, ending.saved_step, ending.error) == ("finished", None, None)
    assert lab.left_of(trial) == []
    server = lab.executor.server._process.pid
    status = Path(f"/proc/{server}/status").read_text()
    assert "\nThreads:\t1\n" in status, "it forked with one"
    assert "libtorch_cpu.so" in Path(f"/proc/{server}/maps").read_text()

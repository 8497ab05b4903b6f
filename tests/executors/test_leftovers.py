"""Leftovers of a trial on the machine beside its processes: a flood of output, and shared memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpusched.folder.files import read_from
from gpusched.processes import claim as claims
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import Identity, send_signal, start_time
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import the_exit
from tests.executors.test_ranks import play
from tests.executors.test_trees import begin, kill

SHARED = Path("/dev/shm")


def test_a_flood_of_output_slows_nobody(lab: Lab) -> None:
    trial, ending = play(lab, "flood", mib=32)
    assert ending.outcome == "finished"
    lines, _ = read_from(lab.logs(trial) / "rank-0.out", 0)
    assert lines[0].startswith("block      0 ")
    assert lines[-1].startswith("block     31 ")


@pytest.fixture
def somebody_elses() -> Iterator[list[Path]]:
    """Segments that look alike and are not the trial's: of a living process, and one that a living process has open."""
    files = [SHARED / f"psm_{os.urandom(4).hex()}", SHARED / f"torch_{os.getpid()}_1_1"]
    try:
        for file in files:
            file.write_bytes(b"x")
        with files[0].open():
            yield files
    finally:
        for file in files:
            with suppress(FileNotFoundError):
                file.unlink()


@pytest.mark.skipif(not os.access(SHARED, os.W_OK), reason="/dev/shm cannot be written here")
@pytest.mark.parametrize("is_shared", [True, False])
def test_shared_memory_of_other_containers_stays(
    monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """``--ipc=host`` shows the segments of all containers, and none of their processes."""
    initial = {"ipc"} if is_shared else {"ipc", "pid"}
    monkeypatch.setattr(claims, "in_initial_namespace", initial.__contains__)
    made = SHARED / f"psm_{os.urandom(4).hex()}"
    made.write_bytes(b"x")
    try:
        assert (made.name in claims.sweep_shared_memory(time.time())) is not is_shared
        assert made.exists() is is_shared
    finally:
        made.unlink(missing_ok=True)


@pytest.mark.skipif(not os.access(SHARED, os.W_OK), reason="/dev/shm cannot be written here")
@pytest.mark.parametrize(
    "dies", ["its rank", "its ranks, by us", "its shim", "its shim and server"]
)
def test_shared_memory_of_a_killed_trial_goes(
    lab: Lab, somebody_elses: list[Path], dies: str
) -> None:
    """The shim removes it; where that is dead, the daemon's hunt, whether a server is left or not."""
    trial = begin(lab, "segments", dies=dies == "its rank")
    python, torch_like, chosen = wait_for(lab.trial_folder(trial) / "segments")
    try:
        if "by us" in dies:
            kill(lab, trial, 0.1)
        else:
            if "server" in dies:
                server = lab.executor.server._process.pid
                assert send_signal(Identity(server, start_time(server) or 0), signal.SIGKILL)
            if "shim" in dies:
                claim = read_claim(lab.paths.trial(trial).shim(1))
                assert send_signal(claim.shim, signal.SIGKILL)
            ending = the_exit(lab.rig.run(trial), trial)
            assert ending.outcome == "lost"
            assert (ending.error or "").startswith("its shim died") == ("shim" in dies)
            assert lab.left_of(trial) == []
        assert not (SHARED / torch_like).exists()
        assert not (SHARED / python).exists()
        assert (SHARED / chosen).exists(), "a name that a person chose"
        assert all(file.exists() for file in somebody_elses)
    finally:
        for name in (python, torch_like, chosen):
            (SHARED / name).unlink(missing_ok=True)

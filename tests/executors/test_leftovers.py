"""What a trial may leave on the machine beside its processes: a flood of output, and shared memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpusched.folder.files import read_from
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
@pytest.mark.parametrize("dies", [False, True], ids=["killed by us", "killed by somebody"])
def test_shared_memory_of_a_killed_trial_goes(
    lab: Lab, somebody_elses: list[Path], dies: bool
) -> None:
    trial = begin(lab, "segments", dies=dies)
    python, torch_like, chosen = wait_for(lab.trial_folder(trial) / "segments")
    try:
        if dies:
            the_exit(lab.rig.run(trial), trial)
        else:
            kill(lab, trial, 0.1)
        assert not (SHARED / torch_like).exists()
        assert not (SHARED / python).exists()
        assert (SHARED / chosen).exists(), "a name that a person chose"
        assert all(file.exists() for file in somebody_elses)
    finally:
        for name in (python, torch_like, chosen):
            (SHARED / name).unlink(missing_ok=True)


@pytest.mark.skipif(not os.access(SHARED, os.W_OK), reason="/dev/shm cannot be written here")
@pytest.mark.parametrize("server_too", [False, True], ids=["shim", "shim and server"])
def test_shared_memory_goes_when_the_shim_was_killed(
    lab: Lab, somebody_elses: list[Path], server_too: bool
) -> None:
    """The server that is left ends the tree; where that is dead too, the daemon's hunt does."""
    trial = begin(lab, "segments")
    python, torch_like, chosen = wait_for(lab.trial_folder(trial) / "segments")
    try:
        claim = read_claim(lab.paths.trial(trial).shim(1))
        assert claim.shim is not None
        if server_too:
            server = lab.executor.server.pid
            assert server is not None
            assert send_signal(Identity(server, start_time(server) or 0), signal.SIGKILL)
        assert send_signal(claim.shim, signal.SIGKILL)
        assert the_exit(lab.rig.run(trial), trial).outcome == "lost"
        assert not (SHARED / torch_like).exists()
        assert not (SHARED / python).exists()
        assert (SHARED / chosen).exists(), "a name that a person chose"
        assert all(file.exists() for file in somebody_elses)
    finally:
        for name in (python, torch_like, chosen):
            (SHARED / name).unlink(missing_ok=True)

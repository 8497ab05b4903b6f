"""What a trial may leave on the machine beside its processes: a flood of output, and shared memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpusched.core.commands import Launch
from gpusched.folder.logcap import FIRST_BYTES, LAST_BYTES, STEP_BYTES, read_from
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import Identity, send_signal, start_time
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import the_exit
from tests.executors.test_ranks import play
from tests.executors.test_trees import begin, kill

MIB = 1 << 20
SHARED = Path("/dev/shm")


def check_flood(lab: Lab, trial: int, mib: int) -> None:
    assert wait_for(lab.trial_folder(trial) / "flooded") == mib, "it was not slowed to death"
    stream = lab.logs(trial) / "rank-0.out"
    assert stream.stat().st_size > (mib - 1) * MIB
    assert stream.stat().st_blocks * 512 <= FIRST_BYTES + LAST_BYTES + STEP_BYTES + MIB
    lines, _ = read_from(stream, 0)
    assert lines[0].startswith("block      0 ")
    assert lines[-1].startswith(f"block {mib - 1:6d} ")
    assert sum(line.startswith("[gpusched: ") for line in lines) == 1


def test_a_flood_of_output_is_capped(lab: Lab) -> None:
    trial, ending = play(lab, "flood", mib=96)
    assert ending.outcome == "finished"
    check_flood(lab, trial, 96)


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["warm", "cold"])
def test_a_flood_of_a_gigabyte(launch: str, tmp_path: Path) -> None:
    """Without a daemon, too: it goes as soon as the trial is up."""
    lab = Lab(tmp_path, launch=launch)
    try:
        trial = lab.rig.new_trial()
        lab.executor.execute(
            Launch(trial, 1, lab.rig.devices[:1], {"scenario": "flood", "mib": 1024})
        )
        ending = the_exit(lab.rig.run(trial), trial)
        assert ending.outcome == "finished"
        check_flood(lab, trial, 1024)
    finally:
        lab.clean()


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

"""Leases: real locks, real processes, real kills."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.devices.leases import Leases, lease_folder, lease_holder
from gpusched.errors import DeviceError
from tests.rig import refusing

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from gpusched.devices.leases import Leases
leases = Leases(Path(sys.argv[1]), "runs/other")
assert not leases.take("GPU-a")
child = subprocess.Popen(["sleep", "60"])   # must not keep the lock
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def other(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another experiment that has the lease of GPU-a, and a child of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    process.stdout.close()
    os.kill(child, 9)


def test_a_lease_dies_with_its_holder_though_its_children_live(
    folder: Path, other: tuple[subprocess.Popen[str], int]
) -> None:
    process, child = other
    mine = Leases(folder, "runs/mine")
    assert mine.take("GPU-a") == f"search runs/other (pid {process.pid})"
    assert lease_holder(folder, "GPU-a") == f"search runs/other (pid {process.pid})"
    assert not mine.take("GPU-b")
    process.kill()
    process.wait()
    os.kill(child, 0)  # still there
    assert not mine.take("GPU-a")
    mine.close()
    assert not lease_holder(folder, "GPU-a")
    assert not lease_holder(folder, "GPU-b")


def test_the_lock_is_the_truth_not_what_is_written_in_it(folder: Path) -> None:
    path = folder / "GPU-a.lock"
    path.write_text('{"pid": 1, "experiment": "a ghost"}')
    mine = Leases(folder, "mine")
    assert not mine.take("GPU-a")
    path.write_bytes(b"\xff rubbish")
    assert Leases(folder, "other").take("GPU-a") == "another search"
    mine.close()


def test_a_planted_link_is_not_followed(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("precious")
    (folder / "GPU-a.lock").symlink_to(victim)
    with pytest.raises(DeviceError, match="cannot be locked: Too many levels"):
        Leases(folder, "mine").take("GPU-a")
    assert victim.read_text() == "precious"


def test_the_folder_is_private_and_in_the_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    found = lease_folder()
    assert found == folder / "state/gpusched/leases"
    assert found.stat().st_mode & 0o777 == 0o700
    # As of a container that runs under a user's number: a search was refused there.
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(folder / "nowhere"))
    monkeypatch.setattr("gpusched.devices.leases.BESIDE", folder)
    assert lease_folder() == folder / f"gpusched-leases-{os.getuid()}"


def test_a_home_without_file_locks_is_told_what_to_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", refusing(errno.ENOLCK))
    mine = Leases(folder, "mine")
    with pytest.raises(DeviceError, match=r"No locks available\. Set XDG_STATE_HOME .* local disk"):
        mine.take("GPU-a")


def test_a_folder_that_others_may_write_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    shared = folder / "gpusched/leases"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    with pytest.raises(DeviceError, match="others may write there"):
        lease_folder()
    (folder / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file"))
    with pytest.raises(DeviceError, match=r"cannot be made: .*Set XDG_STATE_HOME"):
        lease_folder()


def test_a_full_disk_takes_nobody_s_lease_away(folder: Path) -> None:
    """The lock is what counts; the note for people is not worth a daemon, or a descriptor that keeps the lock."""
    mine = Leases(folder, "mine")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert not mine.take("GPU-a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert lease_holder(folder, "GPU-a") == "another search"
    mine.close()
    assert not lease_holder(folder, "GPU-a")

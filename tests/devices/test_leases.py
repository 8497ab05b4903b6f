"""Leases: real locks, real processes, real kills."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.devices import leases as leases_module
from gpusched.devices.leases import (
    Leases,
    _on_network,
    lease_folder,
    lease_holder,
    lock_path,
    state_home,
)
from gpusched.errors import DeviceError

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from gpusched.devices.leases import Leases
leases = Leases(Path(sys.argv[1]), "runs/other")
assert leases.take("GPU-a") is None
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
    assert process.stdout is not None
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
    holder = mine.take("GPU-a")
    assert holder is not None
    assert (holder.pid, holder.experiment) == (process.pid, "runs/other")
    assert str(holder) == f"experiment runs/other (pid {process.pid})"
    assert lease_holder(folder, "GPU-a") == holder
    assert mine.take("GPU-b") is None
    process.kill()
    process.wait()
    os.kill(child, 0)  # still there
    assert mine.take("GPU-a") is None
    mine.close()
    assert lease_holder(folder, "GPU-a") is None
    assert lease_holder(folder, "GPU-b") is None


def test_one_process_holds_it_once(folder: Path) -> None:
    one, two = Leases(folder, "one"), Leases(folder, "two")
    assert one.take("GPU-a") is None
    assert one.take("GPU-a") is None
    found = two.take("GPU-a")
    assert found is not None
    assert found.experiment == "one"
    one.close()
    one.close()
    assert two.take("GPU-a") is None
    assert lease_holder(folder, "GPU-a") is not None
    two.close()
    assert lease_holder(folder, "GPU-a") is None
    assert lease_holder(folder, "GPU-never") is None


def test_the_lock_is_the_truth_not_what_is_written_in_it(folder: Path) -> None:
    path = lock_path(folder, "GPU-a")
    path.write_text('{"pid": 1, "experiment": "a ghost"}')
    mine = Leases(folder, "mine")
    assert mine.take("GPU-a") is None
    path.write_bytes(b"\xff rubbish")
    holder = Leases(folder, "other").take("GPU-a")
    assert str(holder) == "another experiment"
    mine.close()


def test_descriptors_are_not_inherited(folder: Path) -> None:
    mine = Leases(folder, "mine")
    mine.take("GPU-a")
    held = [
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and os.path.realpath(link) == str(lock_path(folder, "GPU-a").resolve())
    ]
    assert [os.get_inheritable(descriptor) for descriptor in held] == [False]
    mine.close()


def test_a_planted_link_is_not_followed(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("precious")
    lock_path(folder, "GPU-a").symlink_to(victim)
    with pytest.raises(DeviceError, match="cannot be opened"):
        Leases(folder, "mine").take("GPU-a")
    assert victim.read_text() == "precious"


def test_the_folder_is_private_and_in_the_home(folder: Path) -> None:
    found = lease_folder({"XDG_STATE_HOME": str(folder / "state")})
    assert found == folder / "state/gpusched/leases"
    assert found.stat().st_mode & 0o777 == 0o700
    assert state_home({"XDG_STATE_HOME": "relative/is/ignored"}).is_absolute()


def test_a_folder_that_others_may_write_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "RUN_USER", folder / "nothing")
    shared = folder / "gpusched/leases"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    with pytest.raises(DeviceError, match="others may write to it"):
        lease_folder({"XDG_STATE_HOME": str(folder)})
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    environ = {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(runtime)}
    assert lease_folder(environ) == runtime / "gpusched/leases"


def test_a_home_on_a_network_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = folder / "self/mounts"
    mounts.parent.mkdir()
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\n"
        "server:/home /home nfs4 rw,relatime 0 0\n"
        "/dev/sdb /home/local\\040disk xfs rw 0 0\n"
        "/dev/sdc /srv ext4 rw 0 0\n"
        "server:/srv /srv nfs rw 0 0\n"
    )
    monkeypatch.setattr("psutil.PROCFS_PATH", str(folder))
    assert _on_network(Path("/home/me/.local"))
    assert not _on_network(Path("/home/local disk/me"))
    assert not _on_network(Path("/var"))
    assert _on_network(Path("/srv/me")), "the later mount hides the earlier"
    mounts.unlink()
    assert not _on_network(Path("/home/me"))
    monkeypatch.setattr(leases_module, "_on_network", lambda path: True)
    monkeypatch.setattr(leases_module, "RUN_USER", folder / "run")
    mine = folder / "run" / str(os.getuid())
    mine.mkdir(parents=True, mode=0o700)
    found = lease_folder({"XDG_STATE_HOME": str(folder / "state")})
    assert found == mine / "gpusched/leases"


def test_hundred_takers_one_winner(folder: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom gpusched.devices.leases import Leases\n"
        "mine = Leases(Path(sys.argv[1]), 'x')\nsys.stdin.read(1)\n"
        "print('won' if mine.take('GPU-a') is None else 'lost', flush=True)\nsys.stdin.read()\n"
    )
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        for taker in takers:
            assert taker.stdin is not None
            taker.stdin.write("g")
            taker.stdin.flush()
        answers = [taker.stdout.readline().strip() for taker in takers if taker.stdout]
        assert sorted(answers) == ["lost"] * 5 + ["won"]
    finally:
        for taker in takers:
            taker.kill()
            taker.communicate()


def test_a_full_disk_takes_nobody_s_lease_away(folder: Path) -> None:
    """The lock is what counts; the note for people is not worth a daemon, or a descriptor that keeps the lock."""
    mine = Leases(folder, "mine")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert mine.take("GPU-a") is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(lease_holder(folder, "GPU-a")) == "another experiment"
    mine.close()
    assert lease_holder(folder, "GPU-a") is None

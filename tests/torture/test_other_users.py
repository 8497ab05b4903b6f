"""Another user of this machine can do nothing to a running experiment; and who listens where."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.executors.conftest import listening_addresses
from tests.rig import PATIENCE_S, as_nobody, marked
from tests.torture.bed import Bed

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}

FILES = (
    *("journal.db", "resolved.json", "daemon.log", "lock", "epoch", "worker.json"),
    "trials/0000/reports.jsonl",
)


def knock(root: Path) -> None:
    """Ask the daemon to stop. Raises OSError if it does not answer."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE_S)
        line.connect(str(root / "daemon.sock"))
        line.sendall(b'{"kind":"ask","verb":"stop"}\n')
        if not line.recv(100):
            raise OSError


def open_as(path: Path, flags: int) -> None:
    os.close(os.open(path, flags, 0o600))


def what_succeeds(root: Path) -> Iterator[str]:
    """Each of the things that somebody may try, if it can be done."""
    tries: dict[str, Callable[[], object]] = {
        "list": lambda: list(root.iterdir()),
        "socket": lambda: knock(root),
        "put": lambda: open_as(root / "put", os.O_CREAT | os.O_WRONLY),
    }
    for name in FILES:
        tries[f"read {name}"] = partial(open_as, root / name, os.O_RDONLY)
        tries[f"write {name}"] = partial(open_as, root / name, os.O_WRONLY | os.O_APPEND)
    for name, act in tries.items():
        with contextlib.suppress(OSError):
            act()
            yield name


def succeeds(root: Path) -> str:
    """Say what succeeds in a process of another user."""
    return as_nobody(lambda: " ".join(what_succeeds(root)))


@pytest.fixture
def open_bed() -> Iterator[Bed]:
    """In a folder that everybody may enter: what protects an experiment must be its own."""
    root = Path(tempfile.mkdtemp(prefix="gpusched-others-"))
    root.chmod(0o755)
    bed = Bed(root, {"devices": "cpu:2", "sizes": [2], "policy": {"name": "fifo", "R": 100_000}})
    yield bed
    bed.end()
    shutil.rmtree(root)


def test_nobody_else_gets_in(open_bed: Bed) -> None:
    bed = open_bed
    bed.runs.chmod(0o755)
    bed.begin(reports=4)
    everything = [bed.daemon.pid, *marked(bed.paths.root)]
    assert listening_addresses(everything) <= LOOPBACK, "as in 'ss -ltn'"
    inodes = Path("/proc/net/unix").read_text()
    assert "@gpusched" not in inodes, "abstract names have no permissions"
    assert bed.view()["daemon_pid"] == bed.daemon.pid, "this user is answered"
    if os.getuid() != 0:
        return  # only root can be somebody else
    assert succeeds(bed.paths.root) == "", "the folder is closed"
    # Even somebody who got in (a careless chmod) cannot connect: the socket is its owner's alone.
    bed.paths.root.chmod(0o755)
    assert succeeds(bed.paths.root) == "list", "files are closed, and the daemon is silent"
    assert bed.view()["daemon_pid"] == bed.daemon.pid

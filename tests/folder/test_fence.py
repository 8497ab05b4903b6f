"""The fence of a launch that was given up: what is not known may not write."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpusched.errors import InputError
from gpusched.folder.lock import Fence, Lock, read_fence, write_fence
from gpusched.worker.checkpoint import CheckpointStore
from tests.rig import refusing


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spares: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 20, hard))
    try:
        with suppress(OSError):
            while True:
                spares.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for spare in spares:
            os.close(spare)


def test_only_a_missing_file_means_no_fence(tmp_path: Path) -> None:
    """Without a descriptor left a launch that was given up wrote on."""
    fence = tmp_path / "fence"
    Fence(fence, 1).check()
    write_fence(fence, 1)
    with no_descriptor_left(), pytest.raises(OSError, match="Too many") as refused:
        Fence(fence, 1).check()
    assert refused.value.errno == errno.EMFILE
    fence.write_text("")
    with pytest.raises(OSError, match="being written"):
        read_fence(fence)
    write_fence(fence, 1)
    assert read_fence(fence) == 1


def test_a_folder_without_locks_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message was "Function not implemented"."""
    monkeypatch.setattr("fcntl.flock", refusing(errno.ENOSYS))
    with pytest.raises(InputError, match=r"cannot be locked .*Function not implemented.* --dir"):
        Lock.take(tmp_path / "lock")


def test_a_report_waits_until_the_fence_can_be_read(tmp_path: Path) -> None:
    fence = tmp_path / "fence"
    fence.write_text("")
    threading.Timer(0.1, write_fence, (fence, 2)).start()
    assert Fence(fence, 2).wait()
    assert not Fence(fence, 3).wait()


def test_a_checkpoint_that_is_renamed_behind_the_fence_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped between its look at the fence and the rename."""
    fence = tmp_path / "fence"
    store = CheckpointStore(tmp_path / "checkpoints", 2, Fence(fence, 1))
    store.write(5, {"state": b"old"}, {})

    def late(name: str) -> None:
        if name == "checkpoint.renamed":
            write_fence(fence, 1)

    monkeypatch.setattr("gpusched.failpoints.reach", late)
    for step in (5, 6):
        fence.unlink(missing_ok=True)
        with pytest.raises(OSError, match="another node has taken this trial over"):
            store.write(step, {"state": b"new"}, {})
    newest = CheckpointStore(tmp_path / "checkpoints").newest()
    assert newest is not None
    assert (newest.step, (newest.folder / "state").read_bytes()) == (5, b"old")

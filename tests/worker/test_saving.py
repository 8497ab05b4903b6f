"""Saving behind: training goes on while a copy is written, and what was committed survives any kill."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from gpusched.folder.paths import HELD, commit_left
from gpusched.processes.identity import boot_id
from gpusched.worker import checkpoint
from gpusched.worker.channel import Channel
from gpusched.worker.checkpoint import CheckpointStore
from gpusched.worker.group import Group
from gpusched.worker.saving import Saver, Snapshot
from tests.rig import PATIENCE_S


class Listens(Channel):
    """Hear of every step that is committed, perhaps from another thread, in the place of a daemon."""

    def __init__(self, folder: Path, heard: Callable[[int], object]) -> None:
        super().__init__(folder, 0, 1)
        self.heard = heard

    def saved(self, step: int, save_s: float, size_bytes: int) -> None:
        self.heard(step)


def make(
    folder: Path, weights: torch.Tensor, heard: Callable[[int], object] = lambda step: None
) -> Saver:
    capture = {"weights": weights}.copy
    return Saver(Group(0, 1), folder, Listens(folder, heard), 0, capture)


def test_the_next_save_waits_for_the_one_before_it(tmp_path: Path) -> None:
    told: list[int] = []
    weights = torch.zeros(100_000)
    saver = make(tmp_path, weights, told.append)
    for step in range(1, 6):
        weights.fill_(step)
        saver.save_behind((step, step))
    weights.fill_(6)
    assert saver.save((6, 6))
    assert told == [1, 2, 3, 4, 5, 6]
    found = saver.newest()
    assert found.load("state.pt")["weights"].unique().tolist() == [6]


def test_snapshots_of_any_size_one_after_another() -> None:
    snapshot = Snapshot()
    for size in (1000, 10, 0, 5000, 5000, 4999):
        state = {"weights": torch.rand(size), "name": "x" * size}
        data = bytes(snapshot.take(state))
        loaded = torch.load(io.BytesIO(data), weights_only=True)
        assert torch.equal(loaded["weights"], state["weights"])
        assert loaded["name"] == state["name"]


def fork(body: Callable[[int], object]) -> tuple[IO[str], Callable[[], None]]:
    """Run this in a process of its own, with a line to write to; return what is written there, and how to kill it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        body(theirs)
        os._exit(1)
    os.close(theirs)

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    return os.fdopen(ours), kill


def _hold(folder: Path, line: int) -> None:
    """Commit step 1, hold steps 2 and 3 for later, and train on."""
    weights = torch.ones(1000)
    saver = make(folder, weights)
    assert saver.save((1, 1))
    for step in (2, 3):
        weights.fill_(step)
        saver.hold((step, step))
        saver.wait()
    weights.fill_(9)
    os.write(line, b"held\n")
    time.sleep(PATIENCE_S)


@pytest.mark.parametrize("by", ["the next launch", "the daemon", "nobody: the machine restarted"])
def test_the_best_copy_that_is_held_outlives_a_rank_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    told, kill = fork(partial(_hold, tmp_path))
    with told:
        assert told.readline() == "held\n"
    kill()
    if by == "the daemon":
        commit_left(tmp_path, boot_id())
        assert (tmp_path / "step-00000003").is_dir()
    elif by != "the next launch":
        monkeypatch.setattr(checkpoint, "boot_id", lambda: "another")
    store = CheckpointStore(tmp_path)
    found = store.newest()
    step = 1 if by.startswith("nobody") else 3
    assert found.step == step
    assert found.load("state.pt")["weights"].unique().tolist() == [step]
    # Where the machine has restarted, one of this step is there already.
    store.write(3, {}, {}, held=True)
    store.commit_held(3)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(HELD)] == []


def test_files_of_the_script_outlive_the_commit_of_a_copy_that_was_held(tmp_path: Path) -> None:
    saver = make(tmp_path, torch.ones(10))
    saver.hold((1, 1))
    folder = saver.open_folder()
    assert folder is not None
    (folder / "note").touch()
    saver.save_behind((2, 2), folder)
    assert saver.settle()
    assert (tmp_path / "step-00000002" / "files" / "note").exists()


def test_a_copy_that_is_held_as_the_one_before_falls_due_is_committed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer takes the new copy before that is written."""
    told: list[int] = []
    saver = make(tmp_path, torch.ones(10), told.append)
    begin = saver._begin

    def due_now(work: Callable[[], object]) -> None:
        due = threading.Thread(target=saver.finish)
        monkeypatch.setattr(saver, "wait", lambda: (due_asks.set(), wait())[1])
        due.start()
        assert due_asks.wait(PATIENCE_S)
        begin(work)
        due.join(PATIENCE_S)

    due_asks, wait = threading.Event(), saver.wait
    monkeypatch.setattr(saver, "_begin", due_now)
    saver.hold((1, 1))
    saver.finish()
    assert told == [1]


def _train(folder: Path, line: int) -> None:
    """Train and save behind for ever; tell of every step that is committed."""
    weights = torch.zeros(200_000)
    saver = make(folder, weights, lambda step: os.write(line, b"%d\n" % step))
    step = saver.newest().step if saver.newest() else 0
    while True:
        step += 1
        weights.fill_(step)
        saver.save_behind((step, step))
        for _ in range(20):
            weights.add_(1)


def test_killed_at_any_moment_what_was_called_saved_is_there_and_whole(tmp_path: Path) -> None:
    chance = random.Random(5)
    last = 0
    for _ in range(12):
        told, kill = fork(partial(_train, tmp_path))
        with told:
            told.readline()  # it is under way
            time.sleep(chance.random() * 0.05)
            kill()
            said = [int(text) for text in told.read().split()]
        found = CheckpointStore(tmp_path).newest()
        assert found.step >= max([last, *said])
        assert found.load("state.pt")["weights"].unique().tolist() == [found.step]
        last = found.step


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_state_on_a_gpu_is_copied_through_pinned_memory(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """Pageable memory takes 1.4 GB/s where pinned takes 12.6; the archive is the same."""
    from torch.utils.serialization import config

    saved, seen = torch.save, []

    def save(state: Any, file: Any) -> None:
        seen.append((config.save.use_pinned_memory_for_d2h, config.save.compute_crc32))
        saved(state, file)

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_gpu)
    copy = bytes(Snapshot().take({"w": torch.arange(5.0)}))
    assert seen == [(on_gpu, False)]
    assert (config.save.use_pinned_memory_for_d2h, config.save.compute_crc32) == (False, True)
    assert torch.load(io.BytesIO(copy), weights_only=True)["w"].tolist() == [0, 1, 2, 3, 4]

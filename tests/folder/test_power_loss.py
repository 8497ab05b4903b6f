"""The power fails while a trial saves and is the best: what was acknowledged is on the disk, whole.

``Recorder`` records every call that changes a folder, and every fsync, as the real code runs. Then a file holds what it
held at its last fsync, or any mixture of that and of what was written since (cut at any byte, sectors missing or zero).
A change of a folder that no fsync of that folder followed is there or not, each by itself; changes of one name keep
their order.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gpusched.core.commands import KeepBest
from gpusched.errors import DamagedState
from gpusched.executors.best import keep_best
from gpusched.folder.files import private_folder, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.worker.checkpoint import CheckpointStore
from tests.torture.bed import times

TRIAL = 7
SECTOR = 512
CALLS = ("open", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "link", "symlink")


def mixed(rng: random.Random, old: bytes, new: bytes) -> bytes:
    """``old`` on its way to ``new``: nothing, all, a beginning, or some of the sectors."""
    kind = rng.randrange(5)
    if kind == 0:
        return old
    if kind == 1:
        return new
    cut = rng.randrange(len(new) + 1)
    if kind == 2:
        return new[:cut] + old[cut:]
    if kind == 3:
        return new[:cut] + old[cut:].ljust(len(new) - cut, b"\0")  # the size, not the data
    data = bytearray(new)
    for begin in range(0, len(new), SECTOR):
        if rng.random() < 0.5:
            sector = old[begin : begin + SECTOR]
            data[begin : begin + SECTOR] = sector.ljust(min(SECTOR, len(new) - begin), b"\0")
    return bytes(data)


@dataclass
class Step:
    """A change of ``folder``, made in a tree by ``do``; an fsync of it, or of a file with what this held; or a fact."""

    folder: str = ""
    do: Callable[[dict[str, Any]], None] | None = None
    inode: int | None = None
    data: bytes = b""
    #: From here on this must survive.
    fact: tuple[str, int] | None = None


@dataclass
class Recorder:
    """Records what happens below ``root`` within ``recording``: one thread, and no file is written after its fsync."""

    root: Path
    log: list[Step] = field(default_factory=list)
    final: dict[int, bytes] = field(default_factory=dict)

    def acknowledge(self, *fact: Any) -> None:
        self.log.append(Step(fact=fact))

    @contextmanager
    def recording(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in CALLS}
        #: Descriptors that keep the number of an inode from being given to another file.
        kept: dict[int, int] = {}

        def inside(path: Any) -> str:
            """The file's name below the root; empty if it is elsewhere."""
            full = os.path.abspath(os.fspath(path))  # noqa: PTH100 - a link is not to be followed
            return full.removeprefix(f"{self.root}/") if full.startswith(f"{self.root}/") else ""

        def change(name: str, do: Callable[[dict[str, Any]], None]) -> None:
            if name:
                self.log.append(Step(name.rpartition("/")[0], do))

        def becomes(name: str, what: Callable[[dict[str, Any]], Any]) -> None:
            change(name, lambda tree: tree.__setitem__(name, what(tree)))

        def open_(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
            new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            descriptor = int(real["open"](path, flags, mode, **more))
            if new and inside(path) and "dir_fd" not in more:
                inode = os.fstat(descriptor).st_ino
                kept[inode] = real["open"](f"/proc/self/fd/{descriptor}", os.O_RDONLY)
                becomes(inside(path), lambda tree: inode)
            return descriptor

        def fsync(descriptor: int) -> None:
            real["fsync"](descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path != self.root and not inside(path):
                return
            if path.is_dir():
                self.log.append(Step(inside(path)))
            else:
                inode = os.fstat(descriptor).st_ino
                self.log.append(Step(inode=inode, data=path.read_bytes()))

        def rename(source: Any, target: Any, **more: Any) -> None:
            real["rename"](source, target, **more)
            one, other = inside(source), inside(target)
            assert one, source
            assert other, target
            change(other, lambda tree: _rename(tree, one, other))

        def mkdir(path: Any, mode: int = 0o777, **more: Any) -> None:
            real["mkdir"](path, mode, **more)
            becomes(inside(path), lambda tree: "folder")

        def remove(kind: str, path: Any, *, dir_fd: int | None = None) -> None:
            full = path if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / path
            real[kind](path, dir_fd=dir_fd)
            change(name := inside(full), lambda tree: _remove(tree, name))

        def link(source: Any, target: Any, **more: Any) -> None:
            real["link"](source, target, **more)
            one = inside(source)
            assert one, source
            becomes(inside(target), lambda tree: tree.get(one))

        def symlink(source: Any, target: Any, *more: Any, **most: Any) -> None:
            real["symlink"](source, target, *more, **most)
            becomes(inside(target), lambda tree: ("symlink", os.fspath(source)))

        fakes = {
            **{"open": open_, "fsync": fsync, "rename": rename, "replace": rename, "mkdir": mkdir},
            **{"link": link, "symlink": symlink},
            **{name: partial(remove, name) for name in ("unlink", "rmdir")},
        }
        with mock.patch.multiple(os, **fakes):
            yield
        for inode, descriptor in kept.items():
            self.final[inode] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            os.close(descriptor)

    def state(self, rng: random.Random, into: Path) -> dict[str, int]:
        """Make one state that a crash may leave, in ``into``; return the facts that had been acknowledged."""
        past = self.log[: rng.randrange(len(self.log) + 1)]
        synced = {step.inode: step.data for step in past if step.inode is not None}
        of_folder = {
            step.folder: place
            for place, step in enumerate(past)
            if step.do is step.inode is step.fact is None
        }
        tree: dict[str, Any] = {"trials": "folder"}
        loses = rng.random() < 0.8
        for place, step in enumerate(past):
            is_durable = place < of_folder.get(step.folder, -1)
            if step.do and (is_durable or not loses or rng.random() < 0.6):
                step.do(tree)
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        contents: dict[int, bytes] = {}
        for name in sorted(tree):
            what, path = tree[name], into / name
            if what is None or not path.parent.is_dir():
                continue
            if what == "folder":
                path.mkdir(exist_ok=True)
            elif isinstance(what, tuple):
                path.symlink_to(what[1])
            else:
                if what not in contents:
                    contents[what] = mixed(rng, synced.get(what, b""), self.final[what])
                    if self.final[what] == synced.get(what):
                        contents[what] = self.final[what]
                path.write_bytes(contents[what])
        return dict(step.fact for step in past if step.fact is not None)


def _rename(tree: dict[str, Any], one: str, other: str) -> None:
    """Also of a folder, with what is below it. What is not there (its creation was lost) cannot be renamed."""
    if one not in tree:
        return
    _remove(tree, other)
    for name in [name for name in tree if name == one or name.startswith(one + "/")]:
        tree[other + name[len(one) :]] = tree.pop(name)


def _remove(tree: dict[str, Any], gone: str) -> None:
    for name in [name for name in tree if name == gone or name.startswith(gone + "/")]:
        del tree[name]


# ---------------------------------------------------------------- checkpoints and best/


def _state_of(step: int) -> bytes:
    return random.Random(step).randbytes(700 + 97 * step)


def _record_trial(root: Path, seed: int) -> Recorder:
    """A trial that saves, goes back, saves the same step again, and becomes the best."""
    rng = random.Random(seed)
    paths = ExperimentPaths(root)
    private_folder(paths.trials)
    recorder = Recorder(root)
    with recorder.recording():
        trial = paths.trial(TRIAL)
        private_folder(trial.logs(1))
        write_durably(trial.hparams, b'{"trial": 7}')
        store = CheckpointStore(trial.checkpoints, keep=rng.choice([1, 2]))
        steps = [1, 2, 3, 5, rng.choice([5, 6]), 8]
        for step in steps:
            source = memoryview(_state_of(step))
            store.write(step, {"state.pt": source, "rank-0.pt": memoryview(b"rng")}, {"x": step})
            recorder.acknowledge("checkpoint", step)
            if rng.random() < 0.7:
                assert keep_best(paths, KeepBest(TRIAL, step, step / 10, 1), "a")
                recorder.acknowledge("best", step)
    return recorder


def _check_trial(root: Path, known: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    paths = ExperimentPaths(root)
    found = CheckpointStore(paths.trial(TRIAL).checkpoints).newest()
    wanted = known.get("checkpoint", 0)
    assert (found.step if found is not None else 0) >= wanted, f"checkpoint {wanted} is lost"
    if found is not None:
        assert (found.folder / "state.pt").read_bytes() == _state_of(found.step)
        assert (found.folder / "rank-0.pt").read_bytes() == b"rng"
    if "best" in known:
        metric = json.loads((paths.best / "metric.json").read_bytes())
        assert metric["step"] >= known["best"]
        assert metric["value"] == metric["step"] / 10
        state = (paths.best / "checkpoint" / "state.pt").read_bytes()
        assert state == _state_of(metric["step"])
    capsys.readouterr()


def trial_states(folder: Path, count: int, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(count):
        if number % 500 == 0:
            recorded = folder / f"recorded-{number}"
            recorder = _record_trial(recorded, seed + number)
            assert len(recorder.log) > 60, "the recording is not one"
        rng = random.Random(f"{seed} {number}")
        facts = recorder.state(rng, folder / "lost")
        try:
            _check_trial(folder / "lost", facts, capsys)
        except DamagedState:
            raise AssertionError(f"state {number} of seed {seed} is refused") from None
        except BaseException as error:
            error.add_note(f"trial state {number} of seed {seed}")
            raise


def test_a_trial_after_a_power_loss(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial_states(folder, 200, 1, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_a_trial_after_ten_thousand_power_losses(
    folder: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trial_states(folder, times(10_000), seed, capsys)

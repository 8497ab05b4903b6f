"""Every file operation of ours fails once, at every place, with everything a disk may say.

What is acknowledged is on the disk; what was there before is whole; and when the disk is well again it works again.
The journal's own writes are SQLite's: ``journal/test_calls.py``.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gpusched.core.commands import KeepBest
from gpusched.executors.best import keep_best
from gpusched.folder.files import private_folder, write_aside, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import ReportLog, reports_after
from gpusched.processes.claim import add_ranks, make_claim, read_claim
from gpusched.processes.identity import Identity
from gpusched.protocol import Report
from gpusched.worker.checkpoint import CheckpointStore
from gpusched.worker.endings import leave_word

CALLS = (
    *("open", "write", "fsync", "rename", "replace"),
    *("mkdir", "link", "symlink", "fstat"),
)
PAYLOAD = bytes(range(256)) * 40


@dataclass
class Faults:
    """Fails the ``at``-th of the calls with this error; 0: none. ``short``: a write takes half instead."""

    at: int = 0
    error: str = "ENOSPC"
    short: bool = False
    count: int = 0
    failed: str = ""

    @contextmanager
    def armed(self) -> Iterator[None]:
        def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    return real(*arguments, **options)
                self.count += 1
                if self.count == self.at:
                    self.failed = name
                    if not self.short:
                        number = getattr(errno, self.error)
                        raise OSError(number, os.strerror(number))
                    if name == "write":
                        data = memoryview(arguments[1])
                        return real(arguments[0], data[: (len(data) + 1) // 2])
                return real(*arguments, **options)

            return call

        with mock.patch.multiple(os, **{name: wrap(name, getattr(os, name)) for name in CALLS}):
            yield


class Scene:
    """A folder in which each writer has written once in peace; then it is to write again."""

    def __init__(self, root: Path) -> None:
        self.paths = ExperimentPaths(root)
        self.trial = self.paths.trial(4)
        private_folder(self.trial.logs(1))
        self.store = CheckpointStore(self.trial.checkpoints)
        self.save(1)
        write_durably(self.trial.hparams, b'{"old": 1}')
        assert keep_best(self.paths, KeepBest(4, 1, 0.1, 1), "a")
        write_durably(self.paths.final_view, b"old")
        self.log = ReportLog(self.trial.reports, 1)
        assert self.log.append(Report(0, 0, 1, 0.0, {"a": 1}))

    def save(self, step: int) -> int:
        return self.store.write(step, {"state.pt": memoryview(PAYLOAD)}, {})


# ---------------------------------------------------------------- what each writer does, and what must be true then


def _checkpoint(scene: Scene, acknowledged: bool) -> None:
    found = scene.store.newest()
    assert found.step >= (2 if acknowledged else 1)
    assert (found.folder / "state.pt").read_bytes() == PAYLOAD
    staged = [p.name for p in scene.trial.checkpoints.iterdir() if p.name.startswith(".staged")]
    assert staged == [] or not acknowledged


def _best(scene: Scene, acknowledged: bool) -> None:
    metric = json.loads((scene.paths.best / "metric.json").read_bytes())
    assert metric["step"] in ((2,) if acknowledged else (1, 2))
    assert metric["value"] == metric["step"] / 10
    assert (scene.paths.best / "checkpoint" / "state.pt").read_bytes() == PAYLOAD


def _durable(scene: Scene, acknowledged: bool) -> None:
    assert scene.paths.final_view.read_bytes() in ((b"new",) if acknowledged else (b"old", b"new"))
    assert [p.name for p in scene.paths.root.iterdir() if p.name.endswith(".tmp")] == []
    assert scene.paths.final_view.stat().st_mode & 0o777 == 0o600


def _report(scene: Scene, acknowledged: bool) -> None:
    steps = [line.step for line in reports_after(scene.trial.reports, 0)]
    assert steps[0] == 1
    assert (2 in steps) or not acknowledged


def _make_claim(scene: Scene) -> bool:
    """As a shim does: the claim, then its ranks."""
    shim = Identity(os.getpid(), 5)
    path = scene.trial.shim(1)
    claim = read_claim(path)
    made = (claim is not None and claim.shim == shim) or make_claim(path, shim)
    add_ranks(path, shim, [])
    return made


def _claim(scene: Scene, acknowledged: bool) -> None:
    claim = read_claim(scene.trial.shim(1))
    assert not acknowledged or claim.shim == Identity(os.getpid(), 5)


def _hparams(scene: Scene, acknowledged: bool) -> None:
    known = json.loads(scene.trial.hparams.read_bytes())
    assert known in (({"new": 2},) if acknowledged else ({"new": 2}, {"old": 1}))


def _word(scene: Scene, acknowledged: bool) -> None:
    if acknowledged:
        assert json.loads(scene.trial.last_word(1).read_bytes())["why"] == "yielded"


def _leave(scene: Scene) -> None:
    path = scene.trial.exit(1)
    write_aside(path, b'{"outcome": "finished"}\n').replace(path)


def _exit(scene: Scene, acknowledged: bool) -> None:
    path = scene.trial.exit(1)
    assert path.exists() or not acknowledged
    assert not path.exists() or json.loads(path.read_bytes()) == {"outcome": "finished"}


Do = Callable[[Scene], object]
WRITERS: dict[str, tuple[Do, Callable[[Scene, bool], None]]] = {
    "checkpoint": (lambda scene: scene.save(2), _checkpoint),
    "best": (lambda scene: keep_best(scene.paths, KeepBest(4, 2, 0.2, 1), "a"), _best),
    "durable file": (lambda scene: write_durably(scene.paths.final_view, b"new"), _durable),
    "report": (lambda scene: scene.log.append(Report(0, 0, 2, 0.0, {"a": 2})), _report),
    "claim": (_make_claim, _claim),
    "hparams": (
        lambda scene: write_aside(to := scene.trial.hparams, b'{"new": 2}').replace(to),
        _hparams,
    ),
    "last word": (lambda scene: leave_word(scene.trial.last_word(1), "yielded", 2, 2), _word),
    "exit": (_leave, _exit),
}


def attempt(do: Do, scene: Scene, faults: Faults) -> bool:
    """Whether it says that it has been done."""
    try:
        with faults.armed():
            return do(scene) is not False
    except OSError:
        return False


def play(folder: Path, name: str, faults: Faults) -> bool:
    """Once with the fault, once when the disk is well again; whether the fault was reached."""
    scene = Scene(folder)
    if name == "best":
        scene.save(2)
    do, check = WRITERS[name]
    done = attempt(do, scene, faults)
    check(scene, done)
    if faults.failed:
        anew = name == "checkpoint" and faults.error in ("ENOSPC", "EDQUOT")
        assert anew or faults.short or not done or faults.failed in ("link", "fstat"), (
            f"{faults.failed} failed and was passed over"
        )
        assert attempt(do, scene, Faults()), "the disk is well again"
        check(scene, True)
    return bool(faults.failed)


def every_call(folder: Path, name: str, errors: tuple[str, ...]) -> None:
    reached = 0
    for error in errors:
        for at in range(1, 200):
            faults = Faults(at, error if error != "short" else "EIO", short=error == "short")
            try:
                met = play(folder / f"{error}-{at}", name, faults)
            except BaseException as problem:
                problem.add_note(f"{name}: call {at} ({faults.failed}) with {error}")
                raise
            if faults.count < at:
                break
            reached += met
        else:
            raise AssertionError("more calls than were tried")
    assert reached >= len(errors), "the faults did not reach the calls"


@pytest.mark.parametrize(
    "errors",
    [
        ("ENOSPC", "short"),
        pytest.param(("ENOSPC", "EDQUOT", "EIO", "EROFS", "short"), marks=pytest.mark.slow),
    ],
    ids=["", "everything"],
)
@pytest.mark.parametrize("name", WRITERS)
def test_every_call_fails(
    name: str, errors: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every_call(folder, name, errors)
    capsys.readouterr()

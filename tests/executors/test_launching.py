"""From a ``Launch`` to the frame the server gets; nothing is started here."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.commands import Launch
from gpusched.devices.choose import CpuDevices
from gpusched.errors import DeviceError
from gpusched.executors.live import Setting, Timers
from gpusched.executors.local.incarnation import Incarnation, Shared
from gpusched.executors.local.launching import prepare, seed_of
from gpusched.executors.local.server import Server
from gpusched.folder.paths import ExperimentPaths
from gpusched.protocol import Frame, LaunchSpec, encode, to_server
from tests.executors.conftest import recipe


class Line:
    """The line to a warm server, and its hub: says what it is told to, keeps what it is told."""

    def __init__(self) -> None:
        self.lives = True
        self.told: list[LaunchSpec] = []

    def adopt(self, line: socket.socket) -> Line:
        line.close()
        return self

    def hear(self, _decode: object, on_frame: Callable[[Frame], None]) -> None:
        self.say = on_frame

    def send(self, spec: LaunchSpec) -> bool:
        if self.lives:
            self.told.append(spec)
        return self.lives

    def close(self) -> None: ...


class Bench:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.paths = ExperimentPaths(folder)
        self.line = Line()
        hub: Any = self.line
        nothing: Any = None  # no event is made here
        self.seqs: dict[int, int] = {}
        setting = Setting(
            paths=self.paths,
            recipe=recipe(folder, script=Path("train.py"), **settings),
            hub=hub,
            clock=lambda: 0.0,
            seq_of=lambda trial: self.seqs.get(trial, 0),
        )
        self.server = Server(setting, nothing, nothing)
        self.shared = Shared(
            setting=setting,
            timers=Timers(setting.clock),
            server=self.server,
            emit=nothing,
            end=nothing,
        )
        self.devices = CpuDevices(4, cores=[0, 1])

    def prepare(
        self, *devices: str, trial: int = 3, number: int = 2, **hparams: object
    ) -> Incarnation:
        it = Incarnation(self.shared, trial, number, devices, self.paths.trial(trial))
        prepare(it, Launch(trial, number, devices, hparams), self.devices)
        return it


def test_the_frame(tmp_path: Path) -> None:
    bench = Bench(tmp_path, args=("--fast",), env={"NOTE": "x"})
    it = bench.prepare("cpu:1", "cpu:2", lr=0.1)
    spec = it.spec
    assert spec is not None
    assert (spec.trial, spec.incarnation, spec.ranks) == (3, 2, 2)
    assert (spec.script, spec.args) == (str(tmp_path / "train.py"), ["--fast"])
    assert (spec.cwd, spec.dir) == (str(tmp_path), str(tmp_path / "trials" / "0003"))
    assert bench.paths.trial(3).logs(2).stat().st_mode & 0o777 == 0o700
    assert spec.rank_cpus == [[1], [0]]
    environment = spec.env
    assert environment["GPUSCHED_DIR"] == str(tmp_path)
    assert (environment["GPUSCHED_TRIAL"], environment["GPUSCHED_INCARNATION"]) == ("3", "2")
    assert (environment["GPUSCHED_ATOMS"], environment["GPUSCHED_DEVICE"]) == ("2", "cpu")
    assert environment["NOTE"] == "x"
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "lo"
    assert all(one["OMP_NUM_THREADS"] == "1" for one in spec.rank_env)
    assert to_server(encode(spec)) == spec


def test_the_recipe_may_set_threads_but_not_devices(tmp_path: Path) -> None:
    env = {
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": "0",
        "GPUSCHED_DEVICE": "cuda",
        "GPUSCHED_TRIAL": "9",
    }
    spec = Bench(tmp_path, env=env).prepare("cpu:0").spec
    assert spec is not None
    (rank,) = spec.rank_env
    assert rank["OMP_NUM_THREADS"] == spec.env["OMP_NUM_THREADS"] == "3"
    assert rank["CUDA_VISIBLE_DEVICES"] == ""
    assert rank["GPUSCHED_DEVICE"] == spec.env["GPUSCHED_DEVICE"] == "cpu"
    assert spec.env["GPUSCHED_TRIAL"] == "3"


def test_hyperparameters_are_written_anew_when_they_differ(tmp_path: Path) -> None:
    bench = Bench(tmp_path, seed=5)
    path = bench.paths.trial(3).hparams
    bench.prepare("cpu:0", lr=0.1)
    first = path.stat().st_ino
    bench.prepare("cpu:0", number=3, lr=0.1)
    assert path.stat().st_ino == first
    path.write_text('{"torn')
    bench.prepare("cpu:0", number=4, lr=0.1)
    record = json.loads(path.read_text())
    assert (record["trial"], record["hparams"]) == (3, {"lr": 0.1})
    assert record["seed"] == seed_of(5, 3)
    assert path.stat().st_mode & 0o777 == 0o600


def test_reports_of_earlier_incarnations_are_not_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    reports = bench.paths.trial(3).reports
    reports.parent.mkdir(parents=True)
    reports.write_text('{"i": 1, "n": 8, "k": 8, "s": 1, "m": {"m": 1}}\n')
    assert bench.prepare("cpu:0").last_seq == 8


def test_devices_that_are_gone(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):
        Bench(tmp_path).prepare("cpu:9")

"""From a ``Launch`` to the frame that the server gets: our environment in it, and the devices that a recipe names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.commands import Launch
from gpusched.devices.base import NoHost
from gpusched.devices.choose import CpuDevices
from gpusched.errors import DeviceError
from gpusched.executors.live import Setting
from gpusched.executors.local.launching import (
    devices_of,
    environment_for_trials,
    prepare,
    seed_of,
)
from gpusched.folder.lock import write_fence
from gpusched.folder.paths import ExperimentPaths
from gpusched.protocol import LaunchSpec
from tests.executors.conftest import recipe


class Bench:
    """The setting of an executor; nothing is started here."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.paths = ExperimentPaths(folder)
        (folder / "train.py").touch()
        self.setting = Setting(
            paths=self.paths,
            recipe=recipe(folder, script=Path("train.py"), **settings),
            hub=None,
            clock=lambda: 0.0,
        )
        self.devices = CpuDevices(4, cores=[0, 1])

    def prepare(
        self, *devices: str, trial: int = 3, number: int = 2, **hparams: object
    ) -> tuple[LaunchSpec, int]:
        return prepare(self.setting, Launch(trial, number, devices, hparams), self.devices)


def test_the_frame(tmp_path: Path) -> None:
    """What no rank of ``test_ranks.py`` has seen of it."""
    bench = Bench(tmp_path, args=("--fast",))
    spec, _ = bench.prepare("cpu:1", "cpu:2", lr=0.1)
    assert (spec.script, spec.args) == (str(tmp_path / "train.py"), ["--fast"])
    assert spec.rank_cpus == [[1], [0]]
    assert spec.env["GLOO_SOCKET_IFNAME"] == spec.env["NCCL_SOCKET_IFNAME"] == "lo"
    assert spec.env["GPUSCHED_LEAVE_GRACE_S"] == "30.0"


def test_the_recipe_may_set_threads_but_not_devices(tmp_path: Path) -> None:
    env = {
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": "0",
        "GPUSCHED_DEVICE": "cuda",
        "GPUSCHED_TRIAL": "9",
    }
    spec, _ = Bench(tmp_path, env=env).prepare("cpu:0")
    assert spec.env["OMP_NUM_THREADS"] == "3"
    assert spec.env["CUDA_VISIBLE_DEVICES"] == ""
    assert (spec.env["GPUSCHED_DEVICE"], spec.env["GPUSCHED_TRIAL"]) == ("cpu", "3")


def test_hyperparameters_are_written_anew_for_each_launch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, seed=5)
    path = bench.paths.trial(3).hparams
    bench.prepare("cpu:0", lr=0.1)
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
    _, last_seq = bench.prepare("cpu:0")
    assert last_seq == 8


def test_a_node_that_was_given_up_since_it_was_asked_writes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.setting = dataclasses.replace(bench.setting, node="node0")
    fence = bench.paths.trial(3).fence
    fence.parent.mkdir(parents=True)
    write_fence(fence, 2)
    with pytest.raises(OSError, match="taken this trial over"):
        bench.prepare("cpu:0", number=2)
    assert [*fence.parent.iterdir()] == [fence]
    bench.prepare("cpu:0", number=3)


def test_what_would_confuse_a_trial_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torchruns = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_NAME MASTER_ADDR MASTER_PORT"
    )
    ours = "PET_NPROC_PER_NODE TORCHELASTIC_RUN_ID GPUSCHED_TRIAL GPUSCHED_MARK"
    unwanted = (*torchruns.split(), *ours.split())
    for name in (*unwanted, "HOME_SWEET_HOME", "RANKING"):
        monkeypatch.setenv(name, "1")
    settings = recipe(Path(), env={"LR_NOTE": "x", "RANKING": "2", "NOT_GIVEN": None})
    environment = environment_for_trials(settings)
    assert not set(unwanted) & set(environment)
    assert environment["HOME_SWEET_HOME"] == "1"
    assert "NOT_GIVEN" not in environment
    assert (environment["LR_NOTE"], environment["RANKING"]) == ("x", "2")


def test_the_order_of_a_set_is_the_same_in_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary from a set of words was another one after a resume, and the restored embedding with it."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert environment_for_trials(recipe(Path(), seed=7))["PYTHONHASHSEED"] == "7"
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    assert environment_for_trials(recipe(Path(), seed=7))["PYTHONHASHSEED"] == "3"


def test_seeds_depend_on_experiment_and_trial_alone() -> None:
    seeds = [seed_of(experiment, trial) for experiment in range(20) for trial in range(20)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of(0, 7) == seed_of(0, 7)


# ---------------------------------------------------------------- devices


def test_an_experiment_that_goes_on_has_as_many_slots_as_before(tmp_path: Path) -> None:
    found = devices_of(recipe(tmp_path, devices="cpu"), tmp_path, [f"cpu:{n}" for n in range(7)])
    assert [device.id for device in found.open(NoHost())] == [f"cpu:{n}" for n in range(7)]


def test_an_experiment_on_gpus_does_not_go_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto`` would mean CPU slots now; its devices were GPUs."""
    asked: list[dict[str, Any]] = []

    def no_gpus(spec: str, **options: Any) -> Any:
        asked.append({"spec": spec, **options})
        raise DeviceError("no NVIDIA driver here")

    monkeypatch.setattr("gpusched.devices.cuda.CudaDevices", no_gpus)
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        devices_of(recipe(tmp_path), tmp_path, ["GPU-aa11", "GPU-aa22"])
    (call,) = asked
    assert (call["spec"], call["known"]) == ("cuda", ["GPU-aa11", "GPU-aa22"])
    assert call["experiment"] == tmp_path, "its processes are known by it"

"""What of our environment reaches a trial, and which devices a recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpusched.devices.base import NoHost
from gpusched.errors import DeviceError
from gpusched.executors.local.launching import devices_of, seed_of
from gpusched.executors.local.server import environment_for_trials
from tests.executors.conftest import recipe


def test_what_would_confuse_a_trial_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    unwanted = (
        "PET_NPROC_PER_NODE",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_NAME",
        "MASTER_ADDR",
    )
    unwanted += (
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "GPUSCHED_TRIAL",
        "GPUSCHED_MARK",
        "LOCAL_WORLD_SIZE",
    )
    for name in (*unwanted, "HOME_SWEET_HOME", "RANKING", "GPUSCHED_DEBUG"):
        monkeypatch.setenv(name, "1")
    settings = recipe(Path(), env={"LR_NOTE": "x", "RANKING": "2", "NOT_GIVEN": None})
    environment = environment_for_trials(settings)
    assert not set(unwanted) & set(environment)
    assert environment["HOME_SWEET_HOME"] == environment["GPUSCHED_DEBUG"] == "1"
    assert "NOT_GIVEN" not in environment
    assert (environment["LR_NOTE"], environment["RANKING"]) == ("x", "2")


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

"""Which device a person means, and which devices an experiment that goes on gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.core.allocation import Devices
from gpusched.daemon.equipment import devices_of, quarantined_device
from gpusched.devices.base import Device, NoHost
from gpusched.errors import DeviceError, InputError

IDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")


@pytest.fixture
def allocated() -> Devices:
    """All but the last are in quarantine."""
    found = Devices(IDS, {})
    for name in IDS[:3]:
        found.quarantine(name, "a stranger's")
    return found


INVENTORY = [Device(name, f"GPU {place}") for place, name in enumerate(IDS)]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("GPU-aa11", 0), ("GPU 1", 1), ("2", 2), ("GPU-b", 2), ("GPU-aa22", 1)],
)
def test_a_device_by_any_name(allocated: Devices, wanted: str, meant: int) -> None:
    assert quarantined_device(wanted, allocated, INVENTORY) == IDS[meant]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("GPU-aa", "could be several"),
        ("3", "is not in quarantine"),
        ("GPU-cc44", "is not in quarantine"),
        ("", "is not in quarantine"),
    ],
)
def test_what_is_not_meant(allocated: Devices, wanted: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as told:
        quarantined_device(wanted, allocated, INVENTORY)
    assert "GPU-aa11 (GPU 0), GPU-aa22 (GPU 1), GPU-bb33 (GPU 2)" in str(told.value)


def recipe(**keys: Any) -> Any:
    return SimpleNamespace(**{"devices": "auto", "gpus_per_atom": 1, "gpu_ids": "uuid", **keys})


def test_an_experiment_that_goes_on_has_as_many_slots_as_before(tmp_path: Path) -> None:
    found = devices_of(recipe(devices="cpu"), tmp_path, [f"cpu:{n}" for n in range(7)])
    assert [device.id for device in found.open(NoHost())] == [f"cpu:{n}" for n in range(7)]


def test_an_experiment_on_gpus_does_not_go_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto`` would mean CPU slots now; its devices were GPUs."""
    from gpusched.devices.cuda import CudaDevices

    asked: list[dict[str, Any]] = []

    def from_spec(spec: str, **options: Any) -> Any:
        asked.append({"spec": spec, **options})
        raise DeviceError("no NVIDIA driver here")

    monkeypatch.setattr(CudaDevices, "from_spec", from_spec)
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        devices_of(recipe(), tmp_path, ["GPU-aa11", "GPU-aa22"])
    (call,) = asked
    assert (call["spec"], call["known"]) == ("cuda", ["GPU-aa11", "GPU-aa22"])
    assert call["experiment"] == tmp_path, "its processes are known by it"

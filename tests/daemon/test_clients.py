"""Which device a person means."""

from __future__ import annotations

import pytest

from gpusched.core.allocation import DeviceTable
from gpusched.daemon.clients import named_device
from gpusched.devices.base import Device
from gpusched.errors import InputError

IDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")


@pytest.fixture
def allocated() -> DeviceTable:
    """All but the last are in quarantine."""
    found = DeviceTable(IDS, {})
    for name in IDS[:3]:
        found.quarantine(name, "a stranger's")
    return found


INVENTORY = [Device(name, f"GPU {place}") for place, name in enumerate(IDS)]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("GPU-aa11", 0), ("GPU 1", 1), ("2", 2), ("GPU-b", 2), ("GPU-aa22", 1)],
)
def test_a_device_by_any_name(allocated: DeviceTable, wanted: str, meant: int) -> None:
    assert named_device(wanted, allocated, INVENTORY, quarantined=True) == IDS[meant]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("GPU-aa", "could be several"),
        ("3", "is not in quarantine"),
        ("GPU-cc44", "is not in quarantine"),
        ("", "is not in quarantine"),
    ],
)
def test_what_is_not_meant(allocated: DeviceTable, wanted: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as told:
        named_device(wanted, allocated, INVENTORY, quarantined=True)
    assert "GPU-aa11 (GPU 0), GPU-aa22 (GPU 1), GPU-bb33 (GPU 2)" in str(told.value)

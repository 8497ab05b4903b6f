"""Contract of ``devices.base.Devices``, which every kind of device keeps to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpusched.devices.base import (
    DeviceRemark,
    Devices,
    Quarantined,
    Readmitted,
    Released,
)
from gpusched.devices.choose import CpuDevices
from gpusched.errors import DeviceError
from tests.devices.box import Box, Watched, gpu

Made = tuple[Watched, Box]
LIMIT_S = 60.0


@pytest.fixture(params=["cpu", "gpus", "shares"])
def made(request: pytest.FixtureRequest, make_box: Callable[..., Box]) -> Iterator[Made]:
    boards = [gpu(number) for number in range(4)]
    box = make_box(*boards)
    if request.param == "cpu":
        slots = Watched(CpuDevices(3, cores=[0, 1]), box.clock)
        box.made.append(slots)
        yield slots, box
    else:
        yield box.devices(atoms_per_gpu=2 if request.param == "shares" else 1), box


def test_devices_are_listed_in_a_fixed_order_under_names_of_their_own(made: Made) -> None:
    devices, _ = made
    names = [device.id for device in devices.open()]
    assert len(names) == len(set(names)) >= 2
    assert [reading.device for reading in devices.readings()] == names


def test_a_trial_gets_a_rank_for_each_device(made: Made) -> None:
    devices, _ = made
    listed = devices.open()
    chosen = [device.id for device in (listed[:2])]
    placement = devices.place(chosen)
    assert len(placement.rank_cpus) == len(chosen)
    assert "CUDA_VISIBLE_DEVICES" in placement.environment
    with pytest.raises(DeviceError):
        devices.place(["no such device"])


def test_each_release_is_told_once(made: Made) -> None:
    devices, box = made
    names = [device.id for device in devices.open()]
    for name in names:
        devices.take([name])
    devices.confirm_release(names, LIMIT_S)
    box.clock.advance(LIMIT_S + 5)
    told = [name for event in devices.told(Released) for name in event.devices]
    assert sorted(told) == sorted(names)
    devices.take(names[:1])
    box.clock.advance(LIMIT_S)
    assert devices.told(Released) == [], "nobody has asked"


def test_what_is_kept_out_comes_back_once(made: Made) -> None:
    devices, box = made
    (name, *_) = [device.id for device in devices.open()]
    devices.keep_out(name, "busy when the last daemon ended")
    box.clock.advance(10)
    assert devices.told(Readmitted) == [Readmitted(name)], "by itself"
    box.clock.advance(10)
    assert devices.told(Readmitted) == devices.told(Quarantined) == []


def test_nothing_is_told_after_the_end(made: Made) -> None:
    devices, box = made
    kind: Devices = devices.devices
    names = [device.id for device in kind.open(devices)]
    kind.take(names[:1])
    box.driver.start(box.gpus[0], 11, 1 << 30)
    if kind.kind == "cuda":
        kind.confirm_release(names[:1], LIMIT_S)
    box.gpus[0].lost_from = box.clock.now()
    kind.close()
    devices.events.clear()
    box.clock.advance(LIMIT_S + 5)
    assert [event for event in devices.events if not isinstance(event, DeviceRemark)] == []

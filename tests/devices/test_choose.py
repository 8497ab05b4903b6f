"""CPU slots, and which kind of devices a text means."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType

import pynvml
import pytest

from gpusched.devices.base import (
    Device,
    DeviceEvent,
    DeviceRemark,
    Devices,
    Readmitted,
    Released,
)
from gpusched.devices.choose import CpuDevices, gpus_here, parse_devices
from gpusched.errors import DeviceError, InputError
from tests.devices.box import Box, gpu
from tests.devices.fake_nvml import forget


class Host:
    """Of devices that need no time."""

    def __init__(self) -> None:
        self.told: list[DeviceEvent] = []
        self.emit = self.told.append

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        raise AssertionError("slots wait for nothing")


def opened(devices: Devices) -> tuple[tuple[Device, ...], list[DeviceEvent]]:
    """What there is, and what is told from the opening on."""
    host = Host()
    return devices.open(host), host.told


def test_one_slot_a_core_of_this_process() -> None:
    cores = sorted(os.sched_getaffinity(0))
    devices = CpuDevices()
    listed, told = opened(devices)
    assert [device.id for device in listed] == [f"cpu:{n}" for n in range(len(cores))]
    assert told == []
    assert all(device.usable for device in listed)


def test_slots_share_cores_where_there_are_more_of_them() -> None:
    devices = CpuDevices(5, cores=[4, 6])
    listed, told = opened(devices)
    assert told == [DeviceRemark("5 CPU slots share 2 cores: steps take longer the more run")]
    placement = devices.place(["cpu:0", "cpu:3", "cpu:4"])
    assert placement.rank_cpus == ((4,), (6,), (4,))
    assert placement.threads_per_rank == 1
    assert [device.label for device in listed][:2] == ["core 4 (shared)", "core 6 (shared)"]


def test_one_core_in_words() -> None:
    _, told = opened(CpuDevices(3, cores=[0]))
    assert str(told[0]).startswith("DeviceRemark(text='3 CPU slots share 1 core:")


def test_every_rank_has_its_own_environment() -> None:
    placement = CpuDevices(2, cores=[0, 1]).place(["cpu:1", "cpu:0"])
    assert (placement.kind, placement.ranks) == ("cpu", 2)
    assert placement.rank_cpus == ((1,), (0,))
    for environment in placement.rank_env:
        assert environment["GPUSCHED_DEVICE"] == "cpu"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["GPUSCHED_LOADER_WORKERS"] == "0"
        assert environment["GLOO_SOCKET_IFNAME"] == "lo"
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert placement.rank_env[0] is not placement.rank_env[1]


@pytest.mark.parametrize("wanted", [["cpu:2"], ["cpu:0", "cuda:0"], []])
def test_slots_that_are_not_there(wanted: list[str]) -> None:
    with pytest.raises(DeviceError):
        CpuDevices(2, cores=[0]).place(wanted)


@pytest.mark.parametrize("slots", [0, -1, 5000])
def test_a_number_of_slots_that_makes_no_sense(slots: int) -> None:
    with pytest.raises(InputError, match="between 1 and 4096"):
        CpuDevices(slots)


def test_slots_are_free_when_asked_and_never_break() -> None:
    devices = CpuDevices(2, cores=[0])
    _, told = opened(devices)
    told.clear()
    devices.confirm_release(["cpu:0", "cpu:1"], 60.0)
    devices.keep_out("cpu:1", "busy when the last daemon ended")
    assert told == [Released(("cpu:0", "cpu:1")), Readmitted("cpu:1")]
    assert [reading.device for reading in devices.readings()] == ["cpu:0", "cpu:1"]
    devices.close()


@pytest.mark.parametrize(("text", "count"), [("cpu:4", 4), (" cpu:1 ", 1), ("cpu:64", 64)])
def test_cpu_by_name(text: str, count: int) -> None:
    assert len(opened(parse_devices(text))[0]) == count


def test_auto_is_cpu_where_the_driver_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert parse_devices("auto").kind == "cpu"
    assert parse_devices("cpu").kind == "cpu"


@pytest.mark.parametrize("shown", [0, 2])
def test_auto_asks_the_driver(
    make_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch, shown: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    box = make_box(*map(gpu, range(shown)))
    assert gpus_here(box.clock) is bool(shown)
    assert all(helper.killed for helper in box.clock.helpers)
    box.driver.init_code = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    forget()
    assert not gpus_here(box.clock)


def test_auto_never_takes_cpu_slots_since_the_driver_is_slow(
    make_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight GPUs without persistence mode take longer than 20 s."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    box = make_box(gpu(0))
    box.driver.init_blocks_until = 45.0
    assert gpus_here(box.clock)
    box.driver.init_blocks_until = 1e9
    forget()
    with pytest.raises(DeviceError, match="did not answer within 120 s"):
        gpus_here(box.clock)


def test_gpus_by_name_go_to_the_gpu_side(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    module = ModuleType("gpusched.devices.cuda")

    def made(spec: str, **options: object) -> CpuDevices:
        asked.append((spec, options))
        return CpuDevices(1)

    module.CudaDevices = made
    monkeypatch.setitem(sys.modules, "gpusched.devices.cuda", module)
    for text in ("cuda", "cuda:0,2,3", "GPU-aa,GPU-bb", "MIG-1/2/3"):
        parse_devices(text, atoms_per_gpu=2)
    options = {"atoms_per_gpu": 2}
    assert asked == [
        (text, options) for text in ("cuda", "cuda:0,2,3", "GPU-aa,GPU-bb", "MIG-1/2/3")
    ]


@pytest.mark.parametrize(
    "text", ["", "gpu", "cpus", "cpu:", "cpu:-1", "cpu:x", "cpu:1.5", "cpu:1,2", "tpu:0"]
)
def test_what_is_not_understood_is_answered_with_what_is(text: str) -> None:
    with pytest.raises(InputError, match='use "auto", "cpu"'):
        parse_devices(text)


@pytest.mark.parametrize(
    ("gpus", "why", "kind"),
    [
        (True, "", "cuda"),
        (True, "torch 2.13.0+cpu is built for CPUs only", "cpu"),
        (False, "?", "cpu"),
    ],
)
def test_auto_leaves_gpus_alone_that_the_script_cannot_use(
    monkeypatch: pytest.MonkeyPatch, gpus: bool, why: str, kind: str
) -> None:
    from gpusched.devices import choose as devices
    from gpusched.devices import cuda

    class Made:
        kind = "cuda"

    monkeypatch.setattr(devices, "gpus_here", lambda: gpus)
    monkeypatch.setattr(cuda, "CudaDevices", lambda spec, **_: Made())
    found = parse_devices("auto", why_no_gpu=lambda: why)
    assert found.kind == kind
    told = opened(found)[1] if isinstance(found, CpuDevices) else []
    said = [event.text for event in told if isinstance(event, DeviceRemark)]
    said = [text for text in said if "no GPU is used" in text]
    assert bool(said) == (gpus and bool(why))
    assert all(why in note for note in said)
    assert parse_devices("cuda", why_no_gpu=lambda: why).kind == "cuda", "who insists gets them"

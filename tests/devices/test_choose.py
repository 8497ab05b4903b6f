"""CPU slots, and which kind of devices a text means. (``test_contract.py``: what every kind keeps to.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpusched.devices import choose
from gpusched.devices.base import Device, Devices
from gpusched.devices.choose import CpuDevices, parse_devices
from gpusched.devices.machine import place
from gpusched.devices.nvml import Gpu
from gpusched.errors import DeviceError
from tests.devices.box import Box, Watched, gpu
from tests.devices.virtual_time import VirtualClock
from tests.rig import run_python


def opened(devices: Devices) -> tuple[tuple[Device, ...], list[str]]:
    """Return the devices, and what is remarked on the opening."""
    watched = Watched(devices, VirtualClock())
    return watched.open(), watched.notes


def test_a_container_s_limit_of_cores_is_kept_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sixty-four trials began at a time where four cores' worth was granted."""
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr("gpusched.devices.base.QUOTA", quota)
    gpus = [Gpu(name, cpus=frozenset(range(64))) for name in ("a", "b")]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 64)
    for granted, slots, threads in (("max", 64, 32), ("850000", 8, 4), ("50000", 1, 1)):
        quota.write_text(f"{granted} 100000\n")
        assert len(opened(parse_devices("cpu"))[0]) == slots
        assert place([(gpus[0], 1)], gpus).threads_per_rank == threads


def test_slots_share_cores_where_there_are_more_of_them() -> None:
    assert len(opened(parse_devices("cpu:5"))[0]) == 5
    devices = CpuDevices(5, cores=[4, 6])
    listed, notes = opened(devices)
    assert notes == ["5 CPU slots share 2 cores: steps take longer the more run"]
    placement = devices.place(["cpu:0", "cpu:3", "cpu:4"])
    assert placement.rank_cpus == ((4,), (6,), (4,))
    assert placement.threads_per_rank == 1
    assert placement.environment == {"CUDA_VISIBLE_DEVICES": ""}, "ranks on slots find no GPU"
    assert [device.label for device in listed][:2] == ["cpu:0", "cpu:1"]


def test_fewer_slots_than_cores_are_pinned_to_none() -> None:
    """The trials of two searches on cpu:2 each met on two cores, and the loaders' workers with them, of sixteen."""
    placement = CpuDevices(2, cores=range(16)).place(["cpu:1"])
    assert placement.rank_cpus == (tuple(range(16)),)


@pytest.mark.parametrize("wanted", [["cpu:2"], ["cpu:0", "cuda:0"], []])
def test_slots_that_are_not_there(wanted: list[str]) -> None:
    with pytest.raises(DeviceError):
        CpuDevices(2, cores=[0]).place(wanted)


# ---------------------------------------------------------------- auto


FOR_CPUS, FOR_GPUS = ("2.13.0+cpu", ""), ("2.13.0", "13.0")


@pytest.mark.parametrize(
    ("source", "cuda"),
    [("cuda = '12.8'", "12.8"), ("cuda = None", ""), ("import nowhere", ""), ("cuda =", "")],
)
def test_cuda_of_a_torch_that_may_be_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, cuda: str
) -> None:
    (tmp_path / "version.py").write_text(source)
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(choose.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setattr(choose.util, "find_spec", lambda name: found)
    assert choose.installed_torch_cuda() == ("2.13.0", cuda)


@pytest.mark.parametrize(
    ("torch", "variable", "why"),
    [
        (FOR_CPUS, None, ""),
        (FOR_GPUS, None, "there is no NVIDIA driver here (a container needs --gpus all)"),
        (FOR_GPUS, "", "CUDA_VISIBLE_DEVICES= hides them"),
    ],
)
def test_auto_says_why_it_is_cpu_where_torch_could_use_gpus(
    monkeypatch: pytest.MonkeyPatch, torch: tuple[str, str], variable: str | None, why: str
) -> None:
    """A container was started without its GPUs, and eight of them were idle for a night."""
    monkeypatch.setattr(choose, "has_library", lambda: variable is not None)
    monkeypatch.setattr(choose, "installed_torch_cuda", lambda: torch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    slots = parse_devices("auto")
    assert slots.kind == "cpu"
    told = [note.partition(". Trials run")[0] for note in opened(slots)[1]]
    assert told == ([f"no GPU is used: {why}"] if why else [])


NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED


@pytest.mark.parametrize(
    ("gpus", "init_code", "blocks_s", "torch", "kind", "told"),
    [
        (2, 0, 0.0, FOR_GPUS, "cuda", ""),
        (8, 0, 45.0, None, "cuda", ""),  # without persistence mode they take longer than 20 s
        (0, 0, 0.0, FOR_GPUS, "cpu", "the driver sees no GPU"),
        (2, NOT_LOADED, 0.0, FOR_GPUS, "cpu", "the NVIDIA kernel driver is not loaded"),
        (2, 0, 0.0, FOR_CPUS, "cpu", "torch 2.13.0+cpu is built for CPUs only"),
    ],
)
def test_auto_is_gpus_where_the_driver_shows_any_and_the_script_can_use_them(
    make_box: Callable[..., Box],
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    init_code: int,
    blocks_s: float,
    torch: tuple[str, str] | None,
    kind: str,
    told: str,
) -> None:
    box = make_box(*map(gpu, range(gpus)))
    box.driver.init_code, box.driver.init_blocks_until = init_code, blocks_s
    monkeypatch.setattr(choose, "installed_torch_cuda", lambda: torch)
    found = parse_devices("auto", experiment=box.home / "search")
    assert found.kind == kind
    if kind == "cpu":
        (note,) = opened(found)[1]
        assert note.startswith("no GPU is used: ")
        assert told in note
        assert all(helper.killed for helper in box.clock.helpers)
    found.close()


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ({"init_blocks_until": 1e9}, "did not answer within 120 s"),
        ({"init_code": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}, r"was updated .* Reboot"),
        ({"init_code": pynvml.NVML_ERROR_UNKNOWN}, "container that has lost its GPUs"),
    ],
)
def test_auto_never_takes_cpu_slots_for_a_driver_in_trouble(
    make_box: Callable[..., Box], trouble: dict[str, Any], why: str
) -> None:
    """A night on CPU slots, beside eight GPUs, is nobody's wish."""
    box = make_box(gpu(0))
    vars(box.driver).update(trouble)
    with pytest.raises(DeviceError, match=why):
        parse_devices("auto", is_our_torch=False, experiment=box.home / "search")


def test_another_package_in_the_place_of_nvidia_ml_py_is_told(tmp_path: Path) -> None:
    """``pynvml`` 11 hides it, and it lacks names. Where there is a driver, the night went by on CPU slots."""
    (tmp_path / "pynvml.py").write_text("class NVMLError(Exception): pass\n")
    code = (
        "from gpusched.devices import choose\nchoose.has_library = lambda: False\n"
        "print(choose.parse_devices('auto', is_our_torch=False).kind)\n"
        "choose.has_library = lambda: True\nchoose.parse_devices('auto', is_our_torch=False)\n"
    )
    done = run_python("-c", code, PYTHONPATH=str(tmp_path), CUDA_VISIBLE_DEVICES="0")
    why = f"{tmp_path}/pynvml.py is not nvidia-ml-py 12.575 or newer: `pip uninstall pynvml"
    assert done.stdout == "cpu\n"
    assert f"DeviceError: {why}" in done.stderr

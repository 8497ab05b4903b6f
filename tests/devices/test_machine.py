"""GPUs that ``CUDA_VISIBLE_DEVICES`` and ``devices:`` leave; islands, and what the ranks are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpusched.devices.machine import choose, islands, place
from gpusched.devices.nvml import Gpu
from gpusched.errors import DeviceError
from tests.devices.box import Box, gpu
from tests.devices.fake_nvml import GIB

GPUS = [Gpu(f"GPU-{i}a00-beef", i, "NVIDIA H100", f"00000000:{i + 1:02X}:00.0") for i in range(4)]


@pytest.mark.parametrize(
    ("spec", "variable", "indices"),
    [
        ("cuda", None, [0, 1, 2, 3]),
        ("cuda:0,2,3", None, [0, 2, 3]),
        ("GPU-2a00-beef,GPU-0a", None, [2, 0]),
        ("cuda:1,0", None, [1, 0]),
        ("cuda", "2,0", [2, 0]),
        ("cuda", " 1 , 3 ", [1, 3]),
        ("cuda", "GPU-1a00-beef,GPU-3", [1, 3]),
        ("cuda", "gpu-1A", [1]),
        ("cuda:0", "3,1", [3]),  # as torch counts
    ],
)
def test_gpus_are_named_within_the_inherited_list(
    spec: str, variable: str | None, indices: list[int]
) -> None:
    found, notes = choose(GPUS, spec, variable)
    assert found == [GPUS[i] for i in indices]
    hidden = f"CUDA_VISIBLE_DEVICES={variable} hides {4 - len(indices)} other GPUs"
    assert notes == ([hidden] if variable and spec == "cuda" else []), "it may be forgotten"


@pytest.mark.parametrize("variable", ["", "-1", "0,7,1", "GPU-", "0,0", "rubbish"])
def test_a_wrong_inherited_list_is_named(variable: str) -> None:
    with pytest.raises(DeviceError, match=f"^CUDA_VISIBLE_DEVICES={variable}: .*The GPUs are:"):
        choose(GPUS, "cuda", variable)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("cuda:9", "GPU 9 was not found"),
        ("cuda:8,9", "GPU 8 was not found; GPU 9 was not found"),
        ("GPU-0a00,GPU-0a", "GPU-0a is named twice"),
        ("MIG-1c", "MIG-1c is a MIG slice, which gpusched does not use: name whole GPUs"),
    ],
)
def test_errors_name_all_problems_and_what_there_is(spec: str, problem: str) -> None:
    with pytest.raises(DeviceError) as raised:
        choose(GPUS, spec)
    assert problem in str(raised.value)
    assert "cuda:3  GPU-3a00-beef  NVIDIA H100" in str(raised.value)


def test_errors_name_the_inherited_list_and_ambiguous_beginnings() -> None:
    with pytest.raises(DeviceError) as raised:
        choose(GPUS, "cuda:2", "3,1")
    assert str(raised.value) == (
        "devices: cuda:2: GPU 2 was not found (inside CUDA_VISIBLE_DEVICES=3,1). The GPUs are:\n"
        "  cuda:0  GPU-3a00-beef  NVIDIA H100\n"
        "  cuda:1  GPU-1a00-beef  NVIDIA H100"
    )
    twins = [Gpu(f"GPU-aa{i}", i, "x") for i in range(2)]
    with pytest.raises(DeviceError, match="GPU-aa is the beginning of 2 UUIDs"):
        choose(twins, "GPU-aa")


# ------------------------------------------------------------ where ranks run


def g(index: int, cpus: range = range(0)) -> Gpu:
    return Gpu(f"g{index}", index, "x", cpus=frozenset(cpus))


def test_islands_are_gpus_next_to_the_same_cores() -> None:
    gpus = [g(place, range(8 * s, 8 * s + 8)) for place, s in enumerate((1, 0, 1, 0))]
    assert islands(gpus) == {"g0": 0, "g1": 1, "g2": 0, "g3": 1}
    assert set(islands([g(0), g(1)]).values()) == {0}, "not known"


def test_devices_come_island_by_island(make_box: Callable[..., Box]) -> None:
    box = make_box(*(gpu(i, cpus=1 << i % 2) for i in range(4)))
    assert [(device.label, device.island) for device in box.devices().open()] == [
        *(("GPU 0", 0), ("GPU 2", 0), ("GPU 1", 1), ("GPU 3", 1))
    ]


@pytest.mark.parametrize(
    ("spec", "variable", "used", "told"),
    [
        ("cuda", None, [1, 2], ["GPU 0 NVIDIA"]),
        ("cuda:0,1", None, [0, 1], []),
        ("cuda", "2,1,0", [0, 1, 2], []),
    ],
)
def test_a_card_for_the_screen_is_left_out_unless_it_is_named(
    make_box: Callable[..., Box],
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
    variable: str | None,
    used: list[int],
    told: list[str],
) -> None:
    """Trial after trial was out of memory on its 4 GiB, and none was left for the others."""
    box = make_box(gpu(0, total=4 * GIB), gpu(1, total=24 * GIB), gpu(2, total=11 * GIB))
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    devices = box.devices(spec)
    assert [device.label for device in devices.open()] == [f"GPU {index}" for index in used]
    assert len(devices.notes) == len(told)
    assert all(map(str.startswith, devices.notes, told)), devices.notes


def test_placement(make_box: Callable[..., Box]) -> None:
    devices = make_box(gpu(0, cpus=0b01), gpu(1, cpus=0b10)).devices()
    names = [device.id for device in devices.open()]
    placement = devices.place(names)
    assert (len(placement.rank_cpus), placement.threads_per_rank) == (2, 1)
    assert placement.environment == {  # every rank sees all, LOCAL_RANK chooses
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUSCHED_GPUS": "0,1",
    }


@pytest.mark.parametrize(
    ("allowed", "cores", "threads"),
    [
        (range(16), [range(8), range(8, 16)], 2),
        (range(4, 8), [range(4, 8), range(4, 8)], 1),
        ((20, 21), [(20, 21), (20, 21)], 1),
    ],
)
def test_a_rank_runs_on_the_cores_next_to_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
    allowed: Sequence[int],
    cores: Sequence[Sequence[int]],
    threads: int,
) -> None:
    """Threads are an even share over the GPUs there; outside the affinity mask, of all allowed cores."""
    gpus = [g(0, range(8)), g(1, range(8)), g(2, range(8, 16)), g(3, range(8, 16))]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 32 if logical else 16)
    placement = place([(gpus[0], 1), (gpus[2], 1)], gpus)
    assert placement.rank_cpus == tuple(map(tuple, cores))
    assert placement.threads_per_rank == threads

"""Islands, shares of cores, and what the ranks are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpusched.devices.machine import islands, place
from gpusched.devices.nvml import Gpu
from tests.devices.box import Box, gpu


def g(index: int, cpus: range = range(0)) -> Gpu:
    return Gpu(f"g{index}", index, "x", cpus=frozenset(cpus))


def test_islands_are_gpus_next_to_the_same_cores() -> None:
    gpus = [g(place, range(8 * s, 8 * s + 8)) for place, s in enumerate((1, 0, 1, 0))]
    assert islands(gpus) == {"g0": 0, "g1": 1, "g2": 0, "g3": 1}
    assert set(islands([g(0), g(1)]).values()) == {0}, "not known"


# ------------------------------------------------------------ through the driver


def test_devices_come_island_by_island(make_box: Callable[..., Box]) -> None:
    gpus = [gpu(i, cpus=1 << i % 2) for i in range(4)]
    box = make_box(*gpus)
    devices = box.devices()
    found = devices.open()
    assert [(device.label, device.island) for device in found] == [
        *(("GPU 0", 0), ("GPU 2", 0), ("GPU 1", 1), ("GPU 3", 1))
    ]


def test_placement(make_box: Callable[..., Box]) -> None:
    box = make_box(gpu(0, cpus=0b01), gpu(1, cpus=0b10))
    devices = box.devices()
    names = [device.id for device in devices.open()]
    placement = devices.place(names)
    assert placement.kind == "cuda"
    assert placement.ranks == 2
    for env in placement.rank_env:
        assert env["CUDA_VISIBLE_DEVICES"] == ",".join(names), (
            "every rank sees all, LOCAL_RANK chooses"
        )
        assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert env["GPUSCHED_DEVICE"] == "cuda"
        assert env["NCCL_SOCKET_IFNAME"] == "lo"
        assert env["OMP_NUM_THREADS"] == str(placement.threads_per_rank) == "1"
        assert env["GPUSCHED_LOADER_WORKERS"] == "1"
    assert placement.rank_cpus is not None


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

"""Islands, shares of cores, and what the ranks are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpusched.devices.machine import (
    core_siblings,
    islands,
    loader_workers,
    parse_cpu_list,
    share_cores,
    split,
    threads_of,
)
from gpusched.devices.nvml import Gpu
from tests.devices.box import Box, gpu


def g(index: int, cpus: range = range(0)) -> Gpu:
    return Gpu(f"g{index}", index, "x", cpus=frozenset(cpus))


def test_islands_are_gpus_next_to_the_same_cores() -> None:
    gpus = [g(place, range(8 * s, 8 * s + 8)) for place, s in enumerate((1, 0, 1, 0))]
    assert islands(gpus) == {"g0": 0, "g1": 1, "g2": 0, "g3": 1}
    assert set(islands([g(0), g(1)]).values()) == {0}, "not known"


def alone(cpu: int) -> tuple[int, ...]:
    return (cpu,)


def test_cores_of_a_node_are_shared_out_evenly() -> None:
    gpus = [g(0, range(8)), g(1, range(8)), g(2, range(8, 16))]
    shares = share_cores(gpus, range(16), alone)
    assert shares == {"g0": (0, 1, 2, 3), "g1": (4, 5, 6, 7), "g2": tuple(range(8, 16))}


def test_cores_of_nodes_without_a_gpu_go_to_their_neighbours() -> None:
    """Four GPUs on nodes 3, 1, 7, 5 of eight, half of the cores were nobody's."""
    gpus = [g(i, range(2 * n, 2 * n + 2)) for i, n in enumerate((3, 1, 7, 5))]
    shares = share_cores(gpus, range(16), alone)
    assert [shares[f"g{n}"] for n in (1, 0, 3, 2)] == [
        tuple(range(first, first + 4)) for first in (0, 4, 8, 12)
    ]


def test_hyperthreads_stay_together_and_count_once() -> None:
    def twins(cpu: int) -> tuple[int, ...]:
        return (cpu % 4, cpu % 4 + 4)

    shares = share_cores([g(0, range(8)), g(1, range(8))], range(8), twins)
    assert shares == {"g0": (0, 1, 4, 5), "g1": (2, 3, 6, 7)}
    assert threads_of(shares["g0"], twins) == 2
    assert loader_workers(shares["g0"]) == 3


def test_outside_the_affinity_mask_all_allowed_cores_are_shared() -> None:
    shares = share_cores([g(0, range(8)), g(1, range(8))], (20, 21), alone)
    assert shares == {"g0": (20,), "g1": (21,)}


@given(
    boards=st.integers(1, 9),
    cores=st.integers(1, 40),
    nodes=st.integers(1, 3),
)
def test_every_gpu_gets_cores_of_its_node_and_shares_differ_by_one(
    boards: int, cores: int, nodes: int
) -> None:
    gpus = [g(i, range(i % nodes * cores, (i % nodes + 1) * cores)) for i in range(boards)]
    shares = share_cores(gpus, range(min(nodes, boards) * cores), alone)
    for board in gpus:
        assert shares[board.uuid]
        assert set(shares[board.uuid]) <= board.cpus
    for node in range(nodes):
        mine = [shares[b.uuid] for b in gpus if b.index % nodes == node]
        if len(mine) <= cores:
            taken = [cpu for share in mine for cpu in share]
            assert len(taken) == len(set(taken))
            assert not mine or max(map(len, mine)) - min(map(len, mine)) <= 1


def test_shares_split_the_cores_of_their_gpu() -> None:
    assert [split((0, 1, 2, 3, 4), 2, part) for part in range(2)] == [(0, 1), (2, 3, 4)]
    assert [split((7,), 3, part) for part in range(3)] == [(7,), (7,), (7,)]
    assert split((), 2, 0) == ()


def test_cpu_lists(tmp_path: Path) -> None:
    assert parse_cpu_list("0-2,8\n") == (0, 1, 2, 8)
    assert parse_cpu_list("") == ()
    folder = tmp_path / "cpu3/topology"
    folder.mkdir(parents=True)
    (folder / "thread_siblings_list").write_text("3,11\n")
    assert core_siblings(3, tmp_path) == (3, 11)
    assert core_siblings(5, tmp_path) == (5,)


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

"""Placement of a trial's ranks on its GPUs: environment, cores, threads. One rank a GPU, in the order of LOCAL_RANK.

Every rank sees all GPUs of its trial (nccl wants to), by UUID, which stays right in any order of counting;
``gpu_ids: index`` gives indices in PCI order, for scripts that parse the variable.

The cores of a GPU's NUMA node are shared out evenly over *all* GPUs of that node, not just over ours, so that two
experiments on one machine, or a GPU that comes and goes, never end up on the same cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpusched.devices.base import Placement
from gpusched.devices.gpu import Gpu
from gpusched.devices.machine import Machine
from gpusched.devices.unit import Unit

LOADER_WORKERS_MAX = 16
CPU_FOLDER = Path("/sys/devices/system/cpu")
NODE_FOLDER = Path("/sys/devices/system/node")

COMMON = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GPUSCHED_DEVICE": "cuda",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    # torchelastic would set 1, whose abort can itself hang; 3 tears the process down without it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
}


@functools.cache
def core_siblings(cpu: int, folder: Path = CPU_FOLDER) -> tuple[int, ...]:
    """Return the hyperthreads of a core, the core itself included."""
    try:
        text = (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return (cpu,)
    return parse_cpu_list(text) or (cpu,)


def place(
    units: Sequence[Unit],
    machine: Machine,
    gpu_ids: str,
    siblings: Callable[[int], tuple[int, ...]] = core_siblings,
) -> Placement:
    """Return one entry a rank, in the order of ``units``."""
    if not machine.cores:
        machine.cores = _cores(machine, siblings)
    shares = [
        split(machine.cores[unit.gpu.uuid], 1 + len(unit.neighbours), unit.share) for unit in units
    ]
    threads = min((threads_of(share, siblings) for share in shares), default=1)
    visible = ",".join(_name(unit.gpu, machine, gpu_ids) for unit in units)
    rank_env = tuple(
        {
            **COMMON,
            "CUDA_VISIBLE_DEVICES": visible,
            "OMP_NUM_THREADS": str(threads),
            "GPUSCHED_LOADER_WORKERS": str(loader_workers(share)),
        }
        for share in shares
    )
    pinned = tuple(shares) if all(shares) else None
    return Placement("cuda", rank_env, pinned, threads)


def _cores(
    machine: Machine, siblings: Callable[[int], tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Share out the cores by UUID, for GPUs and slices. The slices of a board split the board's share."""
    boards = [entry.gpu for entry in machine.entries]
    shares = share_cores(boards, os.sched_getaffinity(0), siblings, node_distances())
    for entry in machine.entries:
        for place, unit in enumerate(entry.units):
            if unit.parent:
                shares[unit.uuid] = split(shares[entry.gpu.uuid], len(entry.units), place)
    return shares


def _name(gpu: Gpu, machine: Machine, gpu_ids: str) -> str:
    """Name a GPU for CUDA. NVML counts in PCI order too; should it ever not, CUDA goes by the place in PCI order."""
    if gpu_ids == "uuid":
        return gpu.uuid
    indices = [entry.gpu.index for entry in machine.entries]
    in_order = indices == sorted(indices)
    return str(gpu.index if in_order else indices.index(gpu.index))


def node_distances(folder: Path = NODE_FOLDER) -> dict[int, tuple[int, dict[int, int]]]:
    """Return of each core its NUMA node, and how far that is from each node; empty where the kernel does not say."""
    found: dict[int, tuple[int, dict[int, int]]] = {}
    places = sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    for place in places:
        try:
            far = [int(word) for word in (place / "distance").read_text().split()]
            cores = parse_cpu_list((place / "cpulist").read_text())
        except (OSError, ValueError):
            return {}
        numbers = [int(path.name[4:]) for path in places]
        found.update(
            dict.fromkeys(cores, (int(place.name[4:]), dict(zip(numbers, far, strict=False))))
        )
    return found


def with_orphans(
    groups: dict[tuple[int, ...], list[Gpu]],
    usable: Iterable[int],
    nodes: Mapping[int, tuple[int, Mapping[int, int]]],
) -> dict[tuple[int, ...], list[Gpu]]:
    """Give cores of nodes without a GPU to the nearest group: an HGX A100's GPUs sit on nodes 3, 1, 7, 5 of 8."""
    grown = {near: list(near) for near in groups}
    taken = {core for near in groups for core in near}
    for core in (core for core in usable if core not in taken and core in nodes):
        distance = nodes[core][1]
        near = min(
            groups,
            key=lambda g: (
                min((distance.get(nodes[c][0], 255) for c in g if c in nodes), default=255),
                len(grown[g]),
            ),
        )
        grown[near].append(core)
    return {tuple(sorted(grown[near])): group for near, group in groups.items()}


def share_cores(
    boards: Iterable[Gpu],
    allowed: Iterable[int],
    siblings: Callable[[int], tuple[int, ...]],
    nodes: Mapping[int, tuple[int, Mapping[int, int]]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Share out the cores of each board (by UUID) among ``allowed``: even, contiguous shares of its node's cores.

    ``nodes``: as ``node_distances`` returns them. Hyperthreads of one core stay together. Boards without known cores
    share all; where a node has fewer cores than boards, they double up.
    """
    usable = sorted(set(allowed))
    by_cores: dict[tuple[int, ...], list[Gpu]] = {}
    for gpu in boards:
        near = tuple(c for c in usable if c in gpu.cpus) or tuple(usable)
        by_cores.setdefault(near, []).append(gpu)
    if nodes and len(by_cores) > 1:
        by_cores = with_orphans(by_cores, usable, nodes)
    shares: dict[str, tuple[int, ...]] = {}
    for near, group in by_cores.items():
        cores = sorted({tuple(s for s in siblings(c) if s in near) or (c,) for c in near})
        for place, gpu in enumerate(group):
            first, last = place * len(cores) // len(group), (place + 1) * len(cores) // len(group)
            mine = cores[first:last] or [cores[place % len(cores)]] if cores else []
            shares[gpu.uuid] = tuple(sorted(cpu for core in mine for cpu in core))
    return shares


def split(cores: Sequence[int], parts: int, part: int) -> tuple[int, ...]:
    """Return the cores of one of ``parts`` slices or shares of a GPU; never empty if there are cores."""
    share = cores[part * len(cores) // parts : (part + 1) * len(cores) // parts]
    return tuple(share or cores[part % len(cores) :][:1]) if cores else ()


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read ``0-2,8`` as (0, 1, 2, 8)."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found.extend(range(int(first), int(last if last.isdecimal() else first) + 1))
    return tuple(found)


def threads_of(cores: Sequence[int], siblings: Callable[[int], tuple[int, ...]]) -> int:
    """Count the threads of arithmetic these cores carry: one a physical core."""
    return max(1, len({siblings(cpu)[0] for cpu in cores}))


def loader_workers(cores: Sequence[int]) -> int:
    """Return a hint for ``DataLoader(num_workers=...)``: all cores of the rank but the one its main thread runs on."""
    return max(1, min(LOADER_WORKERS_MAX, len(cores) - 1))

"""Which GPUs are near each other, and which cores are near a GPU.

*Islands*: GPUs joined by NVLink (directly or through NVSwitch); where there is no NVLink, GPUs of one NUMA node. A
trial on one island exchanges gradients at the speed of the fast links. Devices are listed island by island and, within
one, by NUMA node and PCI order, so that neighbours in the list are near each other too.

*Cores*: the cores of a GPU's NUMA node are shared out evenly over *all* GPUs of that node, not just over ours, so that
two experiments on one machine, or a GPU that comes and goes, never end up on the same cores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pynvml

from gpusched.devices.gpu import Gpu
from gpusched.devices.nvml import ask, ask_if_supported

P2P_NVLINK = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
P2P_READ = 0
"""Not ``pynvml.NVML_P2P_CAPS_INDEX_READ``: a stray comma makes that one a tuple."""

LOADER_WORKERS_MAX = 16
CPU_FOLDER = Path("/sys/devices/system/cpu")


def read_links(gpus: Sequence[Gpu]) -> dict[tuple[str, str], bool]:
    """For each pair of boards, in both orders: whether NVLink joins them. May block."""
    links = {}
    for place, a in enumerate(gpus):
        for b in gpus[place + 1 :]:
            status = ask_if_supported("nvmlDeviceGetP2PStatus", a.handle, b.handle, P2P_NVLINK)
            links[a.uuid, b.uuid] = links[b.uuid, a.uuid] = status == pynvml.NVML_P2P_STATUS_OK
    return links


def read_same_node(gpus: Sequence[Gpu]) -> dict[tuple[str, str], bool]:
    """For each pair, in both orders: whether they need not cross between sockets. May block."""
    near = {}
    for place, a in enumerate(gpus):
        for b in gpus[place + 1 :]:
            if a.numa_node is not None and b.numa_node is not None:
                same = a.numa_node == b.numa_node
            else:
                level = ask_if_supported("nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle)
                same = level is None or level <= pynvml.NVML_TOPOLOGY_NODE
            near[a.uuid, b.uuid] = near[b.uuid, a.uuid] = same
    return near


def islands(
    uuids: Sequence[str],
    linked: Mapping[tuple[str, str], bool],
    near: Mapping[tuple[str, str], bool],
) -> dict[str, int]:
    """Number the islands from 0, in the order of their first member.

    GPUs without any NVLink form islands by ``near`` among themselves.
    """
    with_link = [a for a in uuids if any(linked.get((a, b)) for b in uuids if b != a)]
    without = [a for a in uuids if a not in with_link]
    groups = _groups(with_link, lambda a, b: linked.get((a, b), False))
    groups += _groups(without, lambda a, b: near.get((a, b), True))
    groups.sort(key=lambda group: uuids.index(group[0]))
    return {uuid: number for number, group in enumerate(groups) for uuid in group}


def _groups(names: Sequence[str], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Connected components, members in the order given."""
    left = list(names)
    groups = []
    while left:
        group = [left.pop(0)]
        for member in group:  # grows as it is walked
            for other in [o for o in left if joined(member, o)]:
                left.remove(other)
                group.append(other)
        groups.append(sorted(group, key=names.index))
    return groups


def bundle(
    gpus: Sequence[Gpu], island: Mapping[str, int], size: int
) -> tuple[list[tuple[Gpu, ...]], list[Gpu]]:
    """Atoms of ``size`` GPUs: within an island and a NUMA node first, then within an island, then from what is left.

    Also returns the GPUs that no atom needs. The order of ``gpus`` is kept within each step.
    """
    left = list(gpus)
    atoms: list[tuple[Gpu, ...]] = []
    keys: tuple[Callable[[Gpu], object], ...] = (
        lambda g: (island.get(g.board), g.numa_node),
        lambda g: island.get(g.board),
        lambda g: None,
    )
    for key in keys:
        for value in dict.fromkeys(map(key, left)):
            group = [gpu for gpu in left if key(gpu) == value]
            while len(group) >= size:
                atoms.append(tuple(group[:size]))
                left = [gpu for gpu in left if gpu not in group[:size]]
                group = group[size:]
    return atoms, left


def share_cores(
    boards: Iterable[Gpu], allowed: Iterable[int], siblings: Callable[[int], tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The cores of each board (by UUID) among ``allowed``: even, contiguous shares of its node's cores.

    Hyperthreads of one core stay together. Boards without known cores share all; where a node has fewer cores than
    boards, they double up.
    """
    usable = sorted(set(allowed))
    by_cores: dict[tuple[int, ...], list[Gpu]] = {}
    for gpu in boards:
        near = tuple(c for c in usable if c in gpu.cpus) or tuple(usable)
        by_cores.setdefault(near, []).append(gpu)
    shares: dict[str, tuple[int, ...]] = {}
    for near, group in by_cores.items():
        cores = sorted({tuple(s for s in siblings(c) if s in near) or (c,) for c in near})
        for place, gpu in enumerate(group):
            first, last = place * len(cores) // len(group), (place + 1) * len(cores) // len(group)
            mine = cores[first:last] or [cores[place % len(cores)]] if cores else []
            shares[gpu.uuid] = tuple(sorted(cpu for core in mine for cpu in core))
    return shares


def split(cores: Sequence[int], parts: int, part: int) -> tuple[int, ...]:
    """The share of one of ``parts`` MIG slices in its board's cores; never empty if there are cores."""
    share = cores[part * len(cores) // parts : (part + 1) * len(cores) // parts]
    return tuple(share or cores[part % len(cores) :][:1]) if cores else ()


@functools.cache
def core_siblings(cpu: int, folder: Path = CPU_FOLDER) -> tuple[int, ...]:
    """The hyperthreads of a core, itself included."""
    try:
        text = (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return (cpu,)
    return parse_cpu_list(text) or (cpu,)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``0-2,8`` -> (0, 1, 2, 8)."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found.extend(range(int(first), int(last if last.isdecimal() else first) + 1))
    return tuple(found)


def threads_of(cores: Sequence[int], siblings: Callable[[int], tuple[int, ...]]) -> int:
    """How many threads of arithmetic these cores carry: one a physical core."""
    return max(1, len({siblings(cpu)[0] for cpu in cores}))


def loader_workers(cores: Sequence[int]) -> int:
    """A hint for ``DataLoader(num_workers=...)``: all cores of the rank but the one its main thread runs on."""
    return max(1, min(LOADER_WORKERS_MAX, len(cores) - 1))


def read_peers(a: Gpu, b: Gpu) -> int:
    """NVML's P2P status for reads between two GPUs. May block; raises NvmlError."""
    return int(ask("nvmlDeviceGetP2PStatus", a.handle, b.handle, P2P_READ))

"""The GPUs of this machine, found out once: those that a recipe names, the cores next to them, how ranks use them.

The recipe's ``devices:`` counts within an inherited ``CUDA_VISIBLE_DEVICES``, as ``torch.device`` does; UUIDs must be
in it. Both have indices in PCI order, UUIDs or unambiguous beginnings of them.

*Islands*: GPUs next to the same cores. A trial goes onto one island where it fits. (Where NVLink joins all, any
placement is as good; where bridges join pairs, these are neighbours on the bus, and are given out in that order.)

Every rank sees all GPUs of its trial (nccl wants to), by UUID, which stays right in any order of counting. The cores of
a GPU's NUMA node are shared out evenly over *all* GPUs of that node, not just over ours, so that two searches on one
machine, or a GPU that comes and goes, never end up on the same cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpusched.devices.base import Placement
from gpusched.devices.helper import Driver
from gpusched.devices.nvml import Gpu, Machine
from gpusched.errors import DeviceError

LOADER_WORKERS_MAX = 16
_ALL = {"auto", "cuda", "gpu", ""}
CPU_FOLDER = Path("/sys/devices/system/cpu")

COMMON = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GPUSCHED_DEVICE": "cuda",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    # torchelastic would set 1, whose abort can itself hang; 3 tears the process down without it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
}


def find_machine(driver: Driver) -> Machine:
    """Look for all GPUs. May take seconds; raises DeviceError without a driver, a GPU or an answer."""
    machine: Machine = driver.answer("machine")
    if not machine.gpus:
        why = "; ".join(machine.notes) or "the NVIDIA driver sees no GPU"
        raise DeviceError(f"no GPU can be used here: {why}")
    return machine


def islands(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Number the islands from 0, in the order of their first member."""
    found = list(dict.fromkeys(gpu.cpus for gpu in gpus))
    return {gpu.uuid: found.index(gpu.cpus) for gpu in gpus}


# ---------------------------------------------------------------- the GPUs that a recipe names


def choose(machine: Sequence[Gpu], spec: str, variable: str | None = None) -> list[Gpu]:
    """Return the GPUs that ``devices: spec`` names among those that CUDA_VISIBLE_DEVICES leaves, in this order.

    ``machine``: all GPUs, in PCI order. Raises DeviceError with all problems and the GPUs there are.
    """
    pool, inside = machine, ""
    if variable is not None:
        inside = f" (inside CUDA_VISIBLE_DEVICES={variable})"
        pool = _named(machine, variable, f"CUDA_VISIBLE_DEVICES={variable}", "")
    text = spec.strip()
    if text.lower() in _ALL:
        return list(pool)
    text = text[5:] if text.lower().startswith("cuda:") else text
    return _named(pool, text, f"devices: {spec}", inside)


def _named(gpus: Sequence[Gpu], text: str, where: str, inside: str) -> list[Gpu]:
    found: list[Gpu] = []
    problems: list[str] = []
    for item in (item.strip() for item in text.split(",")):
        gpu = _find(gpus, item)
        if isinstance(gpu, str):
            problems.append(gpu)
        elif gpu in found:
            problems.append(f"{item} is named twice")
        else:
            found.append(gpu)
    if problems:
        raise DeviceError(f"{where}: {'; '.join(problems)}{inside}. The GPUs are:\n{listing(gpus)}")
    return found


def _find(gpus: Sequence[Gpu], text: str) -> Gpu | str:
    """Find the GPU that an index, a UUID or the beginning of one names; what is wrong with it, if none."""
    if text.isdecimal():
        place = int(text)
        return gpus[place] if place < len(gpus) else f"GPU {text} was not found"
    if text.upper().startswith("MIG-"):
        return f"{text} is a MIG slice, which gpusched does not use: name whole GPUs"
    if not text.upper().startswith("GPU-") or len(text) < 5:
        return f"{text!r} is neither an index nor a UUID"
    matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(text.lower())]
    if len(matches) > 1:
        return f"{text} is the beginning of {len(matches)} UUIDs"
    return matches[0] if matches else f"{text} was not found"


def listing(pool: Sequence[Gpu]) -> str:
    """List the GPUs there are, a line each."""
    lines = [f"  cuda:{place}  {gpu.uuid}  {gpu.name}" for place, gpu in enumerate(pool)]
    return "\n".join(lines) or "  no GPU"


# ---------------------------------------------------------------- how ranks use them


@functools.cache
def core_siblings(cpu: int, folder: Path = CPU_FOLDER) -> tuple[int, ...]:
    """Return the hyperthreads of a core, the core itself included."""
    try:
        text = (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return (cpu,)
    return parse_cpu_list(text) or (cpu,)


def place(
    shares: Sequence[tuple[Gpu, int, int]],
    machine: Sequence[Gpu],
    siblings: Callable[[int], tuple[int, ...]] = core_siblings,
) -> Placement:
    """Return one entry a rank, in the order of ``shares``: GPU, number of its shares, which of them."""
    of_gpu = share_cores(machine, os.sched_getaffinity(0), siblings)
    cores = [split(of_gpu[gpu.uuid], parts, part) for gpu, parts, part in shares]
    threads = min((threads_of(share, siblings) for share in cores), default=1)
    visible = ",".join(gpu.uuid for gpu, _, _ in shares)
    rank_env = tuple(
        {
            **COMMON,
            "CUDA_VISIBLE_DEVICES": visible,
            "OMP_NUM_THREADS": str(threads),
            "GPUSCHED_LOADER_WORKERS": str(loader_workers(share)),
        }
        for share in cores
    )
    return Placement("cuda", rank_env, tuple(cores) if all(cores) else None, threads)


def share_cores(
    boards: Iterable[Gpu],
    allowed: Iterable[int],
    siblings: Callable[[int], tuple[int, ...]],
) -> dict[str, tuple[int, ...]]:
    """Share out the cores of each board (by UUID) among ``allowed``: even, contiguous shares of its node's cores.

    Hyperthreads of one core stay together. Boards without known cores share all; where a node has fewer cores than
    boards, they double up. Cores of nodes without a GPU are shared out as well, in order: an HGX A100's GPUs sit on
    nodes 3, 1, 7, 5 of 8.
    """
    usable = sorted(set(allowed))
    by_cores: dict[tuple[int, ...], list[Gpu]] = {}
    for gpu in boards:
        near = tuple(c for c in usable if c in gpu.cpus) or tuple(usable)
        by_cores.setdefault(near, []).append(gpu)
    if len(by_cores) > 1:
        taken = {core for near in by_cores for core in near}
        spare = [core for core in usable if core not in taken]
        ends = [place * len(spare) // len(by_cores) for place in range(len(by_cores) + 1)]
        by_cores = {
            (*near, *spare[ends[place] : ends[place + 1]]): by_cores[near]
            for place, near in enumerate(sorted(by_cores))
        }
    shares: dict[str, tuple[int, ...]] = {}
    for near, group in by_cores.items():
        cores = sorted({tuple(s for s in siblings(c) if s in near) or (c,) for c in near})
        for place, gpu in enumerate(group):
            first, last = place * len(cores) // len(group), (place + 1) * len(cores) // len(group)
            mine = cores[first:last] or [cores[place % len(cores)]] if cores else []
            shares[gpu.uuid] = tuple(sorted(cpu for core in mine for cpu in core))
    return shares


def split(cores: Sequence[int], parts: int, part: int) -> tuple[int, ...]:
    """Return the cores of one of ``parts`` shares of a GPU; never empty if there are cores."""
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

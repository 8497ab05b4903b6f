"""How the ranks of a trial use its GPUs: environment, cores, threads. One rank a GPU, in the order of LOCAL_RANK.

Every rank sees all GPUs of its trial (nccl wants to), by UUID, which stays right whatever order anybody counts in;
``gpu_ids: index`` gives indices in PCI order, for scripts that parse the variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

from gpusched.devices.base import Placement
from gpusched.devices.gpu import Gpu
from gpusched.devices.machine import Machine
from gpusched.devices.topology import (
    core_siblings,
    loader_workers,
    share_cores,
    split,
    threads_of,
)
from gpusched.devices.unit import Unit

GpuIds = Literal["uuid", "index"]

COMMON = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GPUSCHED_DEVICE": "cuda",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    # torchelastic would set 1, whose abort can itself hang; 3 tears the process down without it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
}


def place(
    units: Sequence[Unit],
    machine: Machine,
    gpu_ids: GpuIds,
    siblings: Callable[[int], tuple[int, ...]] = core_siblings,
) -> Placement:
    """One entry a rank, in the order of ``units``."""
    if not machine.cores:
        machine.cores = _cores(machine, siblings)
    shares = [machine.cores[unit.gpu.uuid] for unit in units]
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
    """By UUID, for GPUs and slices. The slices of a board split its share."""
    boards = [entry.gpu for entry in machine.entries]
    shares = share_cores(boards, os.sched_getaffinity(0), siblings)
    for entry in machine.entries:
        for place, unit in enumerate(entry.units):
            if unit.parent:
                shares[unit.uuid] = split(shares[entry.gpu.uuid], len(entry.units), place)
    return shares


def _name(gpu: Gpu, machine: Machine, gpu_ids: GpuIds) -> str:
    """NVML counts in PCI order too; should it ever not, the place in PCI order is what CUDA goes by."""
    if gpu_ids == "uuid":
        return gpu.uuid
    indices = [entry.gpu.index for entry in machine.entries]
    in_order = indices == sorted(indices)
    return str(gpu.index if in_order else indices.index(gpu.index))

"""The GPUs of this machine, found out once: those that a recipe names, the cores next to them, how ranks use them.

The recipe's ``devices:`` counts within an inherited ``CUDA_VISIBLE_DEVICES``, as ``torch.device`` does; UUIDs must be
in it. Both have indices in PCI order, UUIDs or unambiguous beginnings of them.

*Islands*: GPUs next to the same cores. A trial goes onto one island where it fits. (Where NVLink joins all, any
placement is as good; where bridges join pairs, these are neighbours on the bus, and are given out in that order.)

Every rank sees all GPUs of its trial (nccl wants to), by UUID, which stays right in any order of counting. It runs on
the cores next to its GPU; threads of arithmetic are an even share over all GPUs there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import psutil

from gpusched.devices.base import Placement, quota_of_cores
from gpusched.devices.nvml import Gpu
from gpusched.errors import DeviceError
from gpusched.text import count


def islands(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Number the islands from 0, in the order of their first member."""
    found = list(dict.fromkeys(gpu.cpus for gpu in gpus))
    return {gpu.uuid: found.index(gpu.cpus) for gpu in gpus}


# ---------------------------------------------------------------- the GPUs that a recipe names


def choose(
    machine: Sequence[Gpu], spec: str, variable: str | None = None
) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that ``devices: spec`` names among those that CUDA_VISIBLE_DEVICES leaves, in this order.

    And remarks, where nobody names GPUs: on those that the variable hides, and on those that are left out for less than
    a third of the largest one's memory: they are for a screen. ``machine``: all GPUs, in PCI order. Raises DeviceError
    with all problems and the GPUs there are.
    """
    pool, inside = machine, ""
    if variable is not None:
        inside = f" (inside CUDA_VISIBLE_DEVICES={variable})"
        pool = _named(machine, variable, f"CUDA_VISIBLE_DEVICES={variable}", "")
    if spec != "cuda":
        return _named(pool, spec.removeprefix("cuda:"), f"devices: {spec}", inside), []
    most = max((gpu.memory_total_bytes or 0 for gpu in pool), default=0)
    small = [gpu for gpu in pool if 3 * (gpu.memory_total_bytes or most) < most and not inside]
    why = "is left out, beside GPUs with more than three times its memory: `devices` may name it"
    notes = [f"{gpu.label} {gpu.name} {why}" for gpu in small]
    if hidden := len(machine) - len(pool):  # perhaps by a start-up file of the shell
        notes.append(f"CUDA_VISIBLE_DEVICES={variable} hides {count(hidden, 'other GPU')}")
    return [gpu for gpu in pool if gpu not in small], notes


def visible(machine: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves a search that is resumed; one that it names may be gone."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return list(machine)
    found = (_find(machine, item.strip()) for item in names.split(","))
    return [gpu for gpu in found if isinstance(gpu, Gpu)]


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


def place(shares: Sequence[tuple[Gpu, int]], machine: Sequence[Gpu]) -> Placement:
    """Return how ranks use these GPUs, one rank each. ``shares``: a GPU, and how many trials share it."""
    allowed = os.sched_getaffinity(0)
    cores = [tuple(sorted(gpu.cpus & allowed or allowed)) for gpu, _ in shares]
    pool = {*machine, *(gpu for gpu, _ in shares)}
    parts = [trials * sum(gpu.cpus == other.cpus for other in pool) for gpu, trials in shares]
    own = min(len(near) // count for near, count in zip(cores, parts, strict=True))
    own = int(min(own, quota_of_cores() / len(pool)))
    siblings = (psutil.cpu_count() or 1) // (psutil.cpu_count(logical=False) or 1)
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu, _ in shares),
        # For programs that read numbers there, as vLLM does (vllm-project/vllm#46132).
        "GPUSCHED_GPUS": ",".join(str(gpu.index) for gpu, _ in shares),
    }
    return Placement(environment, tuple(cores), max(1, own // max(1, siblings)))

"""All GPUs of the machine, found out once: a watch each, their facts, and how they are joined.

Finding out may take seconds (a driver without persistence mode wakes its GPUs up) and may hang on a sick GPU, so every
board is looked up by a helper of its own, and one that does not answer in time is left out and named.

*Islands*: GPUs joined by NVLink (directly or through NVSwitch); where there is no NVLink, GPUs of one NUMA node. A
trial on one island exchanges gradients at the speed of the fast links.

*Visible* GPUs: the inherited ``CUDA_VISIBLE_DEVICES`` cut down by the recipe's ``devices:``. The variable is read as
CUDA reads it (indices in PCI order, UUIDs or unambiguous beginnings of them, MIG slices; the first entry that names
nothing ends the list), but hidden GPUs are named. ``cuda:0,2`` counts within that list, as ``torch.device`` does; UUIDs
must be in it. A GPU cut by MIG stands for all of its slices. Every error lists the GPUs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pynvml

from gpusched.devices.gpu import Gpu
from gpusched.devices.helper import (
    DriverFound,
    Facts,
    Found,
    GpuHelper,
    Numbers,
    WhichDriver,
    World,
    answer_of,
    ask_once,
)
from gpusched.devices.holders import Processes
from gpusched.devices.leases import state_home
from gpusched.devices.nvml import NvmlError
from gpusched.devices.release import BaselineFile
from gpusched.devices.watch import Watch
from gpusched.errors import DeviceError
from gpusched.processes.identity import boot_id

ALL = {"auto", "cuda", "gpu", ""}


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A place of the list: ``cuda:N``. ``units`` is the GPU itself, or slices of it."""

    gpu: Gpu
    units: tuple[Gpu, ...]


def entry_of(gpu: Gpu, slices: Sequence[Gpu]) -> VisibleGpu:
    """Make the entry of a whole GPU, or of all slices of one that MIG has cut."""
    return VisibleGpu(gpu, tuple(slices) if gpu.mig else (gpu,))


def visible(
    machine: Sequence[VisibleGpu], variable: str | None
) -> tuple[list[VisibleGpu], list[str]]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in the variable's order, and remarks on that."""
    if variable is None:
        return list(machine), []
    found: list[VisibleGpu] = []
    for text in (item.strip() for item in variable.split(",")):
        entry = _find(machine, text)
        if isinstance(entry, str):
            sentinel = text in ("", "-1", "NoDevFiles") or text.lower() == "none"
            note = f"CUDA_VISIBLE_DEVICES={variable}: {entry}; CUDA ignores it and what follows"
            return found, [] if sentinel else [note]
        if any(unit in known.units for known in found for unit in entry.units):
            return found, [f"CUDA_VISIBLE_DEVICES={variable}: {text} is named twice"]
        found.append(entry)
    return found, []


def choose(pool: Sequence[VisibleGpu], spec: str, variable: str | None = None) -> list[Gpu]:
    """Return the GPUs and slices that ``devices: spec`` names. Raises DeviceError."""
    inside = "" if variable is None else f" (inside CUDA_VISIBLE_DEVICES={variable})"
    if not pool:
        raise DeviceError(f"no GPU may be used here{inside}")
    text = spec.strip()
    if text.lower() in ALL:
        return [unit for entry in pool for unit in entry.units]
    body = text[5:] if text.lower().startswith("cuda:") else text
    chosen: list[Gpu] = []
    problems = []
    for item in (item.strip() for item in body.split(",")):
        entry = _find(pool, item)
        if isinstance(entry, str):
            problems.append(entry)
        elif any(unit in chosen for unit in entry.units):
            problems.append(f"{item} is named twice")
        else:
            chosen.extend(entry.units)
    if problems:
        raise DeviceError(
            f"devices: {spec}: {'; '.join(problems)}{inside}. The GPUs are:\n{listing(pool)}"
        )
    return chosen


def _find(entries: Sequence[VisibleGpu], text: str) -> VisibleGpu | str:
    """Find the entry that an index, a UUID or the beginning of one names; what is wrong with it, if none."""
    if text.isdecimal():
        place = int(text)
        return entries[place] if place < len(entries) else f"GPU {text} was not found"
    if not text.upper().startswith(("GPU-", "MIG-")) or len(text) < 5:
        return f"{text!r} is neither an index nor a UUID"
    wanted = text.lower()
    matches: list[VisibleGpu] = []
    for entry in entries:
        if entry.gpu.uuid.lower().startswith(wanted):
            matches.append(entry)
        elif entry.units != (entry.gpu,):
            slices = [unit for unit in entry.units if unit.uuid.lower().startswith(wanted)]
            matches.extend(VisibleGpu(entry.gpu, (unit,)) for unit in slices)
    if len(matches) > 1:
        return f"{text} is the beginning of {len(matches)} UUIDs"
    return matches[0] if matches else f"{text} was not found"


def listing(pool: Sequence[VisibleGpu]) -> str:
    """List the GPUs there are, a line each."""
    lines = []
    for place, entry in enumerate(pool):
        for unit in entry.units:
            lines.append(f"  cuda:{place}  {unit.uuid}  {unit.name}")
    return "\n".join(lines) or "  no GPU"


START_TIMEOUT_S = 60.0
FIND_TIMEOUT_S = 60.0
TOPOLOGY_TIMEOUT_S = 20.0


@dataclass
class Machine:
    """``entries``: the GPUs in PCI order, which is CUDA's under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""

    entries: list[VisibleGpu] = field(default_factory=list)
    watches: dict[str, Watch] = field(default_factory=dict)
    islands: dict[str, int] = field(default_factory=dict)
    driver: str = ""
    cuda: int = 0
    notes: list[str] = field(default_factory=list)
    state_dir: Path | None = None
    #: Of each GPU and slice; worked out by ``placing.py`` when first needed.
    cores: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def baselines(self) -> BaselineFile:
        return BaselineFile(self.state_dir or state_home(), self.driver, boot_id())

    def close(self) -> None:
        for watch in self.watches.values():
            watch.close()


def find_machine(processes: Processes, world: World, state_dir: Path | None = None) -> Machine:
    """Look for all GPUs. ``state_dir``: the place of the baselines.

    Raises DeviceError without a driver, a GPU or an answer.
    """
    helper = world.start(processes)
    try:
        driver = which_driver(world, helper)
        machine = Machine(driver=driver.version, cuda=driver.cuda, state_dir=state_dir)
        _find_boards(machine, driver.gpus, processes, world)
        if not machine.watches:
            why = "; ".join(machine.notes) or "the NVIDIA driver sees no GPU"
            raise DeviceError(f"no GPU can be used here: {why}")
        _join(machine, helper, world)
        return machine
    finally:
        helper.kill()  # this helper has opened all GPUs


def which_driver(world: World, helper: GpuHelper) -> DriverFound:
    """Ask for the driver and the number of its GPUs. Raises NvmlError, and DeviceError if it hangs."""
    try:
        driver: DriverFound = ask_once(world, helper, WhichDriver(), START_TIMEOUT_S)
    except TimeoutError:
        raise DeviceError(
            f"the NVIDIA driver did not answer within {START_TIMEOUT_S:.0f} s; does `nvidia-smi` hang too?"
        ) from None
    return driver


def _find_boards(machine: Machine, count: int, processes: Processes, world: World) -> None:
    """Look each GPU up by a helper of its own, all at the same time, and list them in PCI order."""
    helpers = [world.start(processes) for _ in range(count)]
    for index, helper in enumerate(helpers):
        helper.ask(Facts(index))
    deadline = world.now() + FIND_TIMEOUT_S
    found = []
    for index, helper in enumerate(helpers):
        try:
            answer: Found = answer_of(world, helper, deadline)
        except (TimeoutError, NvmlError) as error:
            machine.notes.append(f"GPU {index} is left out: {error}")
            helper.kill()
            continue
        machine.watches[answer.gpu.uuid] = Watch(answer.gpu, helper, processes, world)
        found.append((answer.gpu, answer.slices))
    found.sort(key=lambda pair: (pair[0].pci_bus_id.lower(), pair[0].index))
    machine.entries = [entry_of(gpu, slices) for gpu, slices in found]


def _join(machine: Machine, helper: GpuHelper, world: World) -> None:
    """Find out which GPUs are neighbours."""
    gpus = [entry.gpu for entry in machine.entries]
    machine.islands = dict.fromkeys(machine.watches, 0)
    if len(gpus) < 2:
        return
    pairs = [(a, b) for place, a in enumerate(gpus) for b in gpus[place + 1 :]]
    links = [
        ("nvmlDeviceGetP2PStatus", pair, (pynvml.NVML_P2P_CAPS_INDEX_NVLINK,)) for pair in pairs
    ]
    ancestors = [("nvmlDeviceGetTopologyCommonAncestor", pair, ()) for pair in pairs]
    try:
        asked = Numbers((*links, *ancestors))
        answers = ask_once(world, helper, asked, TOPOLOGY_TIMEOUT_S).numbers
    except (TimeoutError, NvmlError):
        machine.notes.append(
            "NVML did not say how the GPUs are joined: each counts as a neighbour of all others"
        )
        return
    linked, near = {}, {}
    for (a, b), link, level in zip(
        pairs, answers[: len(pairs)], answers[len(pairs) :], strict=True
    ):
        is_near = level is None or level <= pynvml.NVML_TOPOLOGY_NODE
        if a.numa_node is not None and b.numa_node is not None:
            is_near = a.numa_node == b.numa_node
        for pair in ((a.uuid, b.uuid), (b.uuid, a.uuid)):
            linked[pair], near[pair] = link == pynvml.NVML_P2P_STATUS_OK, is_near
    machine.islands = islands([gpu.uuid for gpu in gpus], linked, near)


def islands(
    uuids: Sequence[str],
    linked: Mapping[tuple[str, str], bool],
    near: Mapping[tuple[str, str], bool],
) -> dict[str, int]:
    """Number the islands from 0, in the order of their first member.

    GPUs without any NVLink form islands by ``near`` among themselves.
    """
    with_link = {a for a in uuids if any(linked.get((a, b)) for b in uuids if b != a)}

    def joined(a: str, b: str) -> bool:
        return near.get((a, b), True) if {a, b}.isdisjoint(with_link) else linked.get((a, b), False)

    found: dict[str, int] = {}
    for first in uuids:
        number = len(set(found.values()))
        island = [] if first in found else [first]
        for member in island:  # grows as it is walked
            found[member] = number
            island += [b for b in uuids if b not in (*found, *island) and joined(member, b)]
    return found

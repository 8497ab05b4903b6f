"""Choice of devices: the kind, the GPUs that a recipe names, and CPU slots.

*Visible* GPUs: the inherited ``CUDA_VISIBLE_DEVICES`` cut down by the recipe's ``devices:``. The variable is read as
CUDA reads it (indices in PCI order, UUIDs or unambiguous beginnings of them; the first entry that names nothing ends
the list), but hidden GPUs are named. ``cuda:0,2`` counts within that list, as ``torch.device`` does; UUIDs must be in
it.

One slot is one atom of a machine without GPUs: by default one a core this process may use. More slots than cores are
allowed, for demonstrations and tests; then several slots share a core and each rank gets one thread.

Slots are not leased: two experiments on one machine share its cores as any two programs do.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpusched.devices.base import (
    Device,
    DeviceRemark,
    Devices,
    Host,
    Placement,
    Reading,
    Readmitted,
    Released,
)
from gpusched.errors import DeviceError, InputError

if TYPE_CHECKING:
    from gpusched.devices.helper import World
    from gpusched.devices.nvml import Gpu

_ALL = {"auto", "cuda", "gpu", ""}
_MOST_SLOTS = 4096
_SYNTAX = 'use "auto", "cpu", "cpu:4", "cuda", "cuda:0,2,3" or GPU UUIDs separated by commas'


class CpuDevices:
    """``slots`` slots on the cores of this process's affinity mask; None: one a core. ``note``: a remark.

    Raises ``InputError`` for a number of slots that makes no sense.
    """

    kind: Literal["cpu", "cuda"] = "cpu"

    def __init__(
        self, slots: int | None = None, cores: Sequence[int] | None = None, *, note: str = ""
    ) -> None:
        self._cores = tuple(sorted(os.sched_getaffinity(0) if cores is None else cores))
        count = len(self._cores) if slots is None else slots
        if not 1 <= count <= _MOST_SLOTS:
            raise InputError(f"devices: cpu:{count}: give between 1 and {_MOST_SLOTS} slots")
        self._core_of = {
            f"cpu:{slot}": self._cores[slot % len(self._cores)] for slot in range(count)
        }
        self._sharers = Counter(self._core_of.values())
        self._note = note

    def open(self, host: Host) -> tuple[Device, ...]:
        self._host = host
        slots, cores = len(self._core_of), len(self._cores)
        if self._note:
            host.emit(DeviceRemark(self._note))
        if slots > cores:
            shared = f"{slots} CPU slots share {cores} core{'s' * (cores > 1)}"
            host.emit(DeviceRemark(f"{shared}: steps take longer the more run"))
        return tuple(Device(id=slot, label=self._label(slot)) for slot in self._core_of)

    def _label(self, slot: str) -> str:
        core = self._core_of[slot]
        return f"core {core}" if self._sharers[core] == 1 else f"core {core} (shared)"

    def take(self, devices: Sequence[str]) -> None:
        """Do nothing: a slot is a trial's by the core's word alone."""

    def drain(self, devices: Sequence[str]) -> None:
        """Do nothing: a core has nothing that could be left on it."""

    def place(self, devices: Sequence[str]) -> Placement:
        """Give each slot one rank, pinned to the slot's core, with one thread."""
        unknown = [device for device in devices if device not in self._core_of]
        if unknown or not devices:
            raise DeviceError(f"no such CPU slot: {', '.join(unknown) or 'none was named'}")
        environment = {
            "GPUSCHED_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            # A rank has one core: a loader's workers would only take it from the training.
            "GPUSCHED_LOADER_WORKERS": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            # A rank must not find the GPUs of a machine on which it was given a CPU slot.
            "CUDA_VISIBLE_DEVICES": "",
        }
        return Placement(
            kind="cpu",
            rank_env=tuple(dict(environment) for _ in devices),
            rank_cpus=tuple((self._core_of[device],) for device in devices),
            threads_per_rank=1,
        )

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        """Release at once: a slot is free when the process tree on it is empty, as the caller has made sure."""
        self._host.emit(Released(tuple(devices)))

    def keep_out(self, device: str, reason: str) -> None:
        """Give the slot back at once: a core has nothing that could be in the way."""
        self._host.emit(Readmitted(device))

    def readings(self) -> tuple[Reading, ...]:
        return tuple(Reading(device=slot, label=self._label(slot)) for slot in self._core_of)

    def close(self) -> None:
        """Do nothing: slots are not leased."""


def parse_devices(
    text: str,
    *,
    why_no_gpu: Callable[[], str] = lambda: "",
    **cuda_options: Any,
) -> Devices:
    """Return the devices that ``devices:`` of a recipe or ``--devices`` names.

    ``auto`` means the GPUs where the driver shows any, else CPU slots; so it does where ``why_no_gpu`` says why the
    script could not use them. ``cuda_options``: for ``CudaDevices``.
    Raises ``InputError`` where the text cannot be understood, ``DeviceError`` where such devices are not there.
    """
    spec = text.strip()
    kind, _, rest = spec.partition(":")
    note = ""
    if spec == "auto":
        spec = "cuda" if gpus_here() else "cpu"
        if spec == "cuda" and (why := why_no_gpu()):
            spec = "cpu"
            note = (
                f"no GPU is used: {why}. Trials run on CPU slots (`devices: cuda` insists on GPUs)"
            )
        kind, rest = spec, ""
    if kind == "cpu":
        if spec == "cpu":
            return CpuDevices(note=note)
        if re.fullmatch(r"[0-9]{1,6}", rest):
            return CpuDevices(int(rest))
        raise InputError(f"devices: {text!r}: after cpu: comes the number of slots; {_SYNTAX}")
    if kind == "cuda" or spec.startswith(("GPU-", "MIG-")):
        from gpusched.devices.cuda import CudaDevices

        return CudaDevices(spec, **cuda_options)
    raise InputError(f"devices: {text!r} is not known; {_SYNTAX}")


def gpus_here(world: World | None = None) -> bool:
    """Tell whether the driver shows a GPU we may use, for ``devices: auto``. Raises DeviceError if it does not answer.

    The driver itself is asked, and waited for: eight GPUs without persistence mode take long, and CPU slots instead of
    GPUs do not help.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "?").strip() in ("", "-1", "NoDevFiles"):
        return False
    from gpusched.devices.helper import Driver, World
    from gpusched.devices.machine import which_driver
    from gpusched.devices.nvml import NvmlAbsent, has_library
    from gpusched.devices.release import Processes

    if not has_library():
        return False
    driver = Driver(world or World(), Processes())
    try:
        return which_driver(driver).gpus > 0
    except NvmlAbsent:
        return False
    finally:
        driver.close()


# ---------------------------------------------------------------- the GPUs that a recipe names


def chosen(
    machine: Sequence[Gpu],
    islands: Mapping[str, int],
    spec: str,
    environ: Mapping[str, str],
) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that ``devices:`` names, island by island, and remarks on that. Raises DeviceError.

    ``machine``: all GPUs, in PCI order.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    pool, notes = visible(machine, variable)
    if not pool:
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES={variable} leaves no GPU. The GPUs are:\n{listing(machine)}"
        )
    gpus = choose(pool, spec, variable)
    return sorted(gpus, key=lambda gpu: (islands.get(gpu.uuid, 0), machine.index(gpu))), notes


def visible(machine: Sequence[Gpu], variable: str | None) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in the variable's order, and remarks on that."""
    if variable is None:
        return list(machine), []
    pool: list[Gpu] = []
    for gpu, problem in _named(machine, variable):
        if gpu is None:
            first = variable.split(",")[len(pool)].strip()
            is_usual = first in ("", "-1", "NoDevFiles") or first.lower() == "none"
            note = f"CUDA_VISIBLE_DEVICES={variable}: {problem}; CUDA ignores it and what follows"
            return pool, [] if is_usual else [note]
        pool.append(gpu)
    return pool, []


def choose(pool: Sequence[Gpu], spec: str, variable: str | None = None) -> list[Gpu]:
    """Return the GPUs that ``devices: spec`` names. Raises DeviceError with all problems and the GPUs there are."""
    text = spec.strip()
    if text.lower() in _ALL:
        return list(pool)
    named = list(_named(pool, text[5:] if text.lower().startswith("cuda:") else text))
    if problems := [problem for gpu, problem in named if gpu is None]:
        inside = "" if variable is None else f" (inside CUDA_VISIBLE_DEVICES={variable})"
        raise DeviceError(
            f"devices: {spec}: {'; '.join(problems)}{inside}. The GPUs are:\n{listing(pool)}"
        )
    return [gpu for gpu, _ in named if gpu is not None]


def _named(gpus: Sequence[Gpu], text: str) -> Iterator[tuple[Gpu | None, str]]:
    """Yield for each entry of a list the GPU that it names, or what is wrong with it."""
    found: list[Gpu] = []
    for item in (item.strip() for item in text.split(",")):
        gpu = _find(gpus, item)
        if isinstance(gpu, str):
            yield None, gpu
        elif gpu in found:
            yield None, f"{item} is named twice"
        else:
            found.append(gpu)
            yield gpu, ""


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

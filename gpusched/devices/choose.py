"""Choice of devices: their kind, and CPU slots.

One slot is one atom of a machine without GPUs: by default one a core this process may use. More slots than cores are
allowed, for demonstrations and tests; then several slots share a core. Each rank has one thread.

Slots are not leased: two experiments on one machine share its cores as any two programs do. So a slot is pinned to a
core only where all cores have one: ranks of fewer slots would meet on the first cores, with their loaders' workers.
"""

from __future__ import annotations

import ctypes
import os
import runpy
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from typing import Any, Literal

from gpusched.devices.base import (
    Device,
    DeviceRemark,
    Devices,
    Host,
    Placement,
    Reading,
    Readmitted,
    Released,
    quota_of_cores,
)
from gpusched.errors import DeviceError


class CpuDevices:
    """``slots`` slots on the cores of this process's affinity mask; None: one a core. ``note``: a remark."""

    kind: Literal["cpu", "cuda"] = "cpu"

    def __init__(
        self, slots: int | None = None, cores: Sequence[int] | None = None, *, note: str = ""
    ) -> None:
        self._cores = tuple(sorted(os.sched_getaffinity(0) if cores is None else cores))
        count = slots or max(1, int(min(len(self._cores), quota_of_cores())))
        self._slots = [f"cpu:{slot}" for slot in range(count)]
        self._note = note

    def open(self, host: Host) -> tuple[Device, ...]:
        self._host = host
        slots, cores = len(self._slots), len(self._cores)
        if self._note:
            host.emit(DeviceRemark(self._note))
        if slots > cores:
            shared = f"{slots} CPU slots share {cores} core{'s' * (cores > 1)}"
            host.emit(DeviceRemark(f"{shared}: steps take longer the more run"))
        return tuple(Device(id=slot, label=slot) for slot in self._slots)

    def _cores_of(self, slot: str) -> tuple[int, ...]:
        cores = self._cores
        if len(self._slots) < len(cores):
            return cores
        return (cores[self._slots.index(slot) % len(cores)],)

    def take(self, devices: Sequence[str]) -> None:
        """Do nothing: a slot is a trial's by the core's word alone."""

    def drain(self, devices: Sequence[str]) -> None:
        """Do nothing: a core has nothing that could be left on it."""

    def place(self, devices: Sequence[str]) -> Placement:
        """Give each slot one rank, with one thread."""
        unknown = [device for device in devices if device not in self._slots]
        if unknown or not devices:
            raise DeviceError(f"no such CPU slot: {', '.join(unknown) or 'none was named'}")
        return Placement(
            # A rank must not find the GPUs of a machine on which it was given a CPU slot.
            environment={"CUDA_VISIBLE_DEVICES": ""},
            rank_cpus=tuple(map(self._cores_of, devices)),
            threads_per_rank=1,
        )

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        """Release at once: a slot is free when the process tree on it is empty, as the caller has made sure."""
        self._host.emit(Released(tuple(devices)))

    def keep_out(self, device: str, reason: str, rest_s: float = 0.0) -> None:
        """Give the slot back at once: a core has nothing that could be in the way."""
        self._host.emit(Readmitted(device))

    def readings(self) -> tuple[Reading, ...]:
        return tuple(Reading(device=slot) for slot in self._slots)

    def close(self) -> None:
        """Do nothing: slots are not leased."""


def parse_devices(spec: str, *, is_our_torch: bool = True, **cuda_options: Any) -> Devices:
    """Return the devices that ``devices:`` names, in the words that the recipe's reader has checked.

    ``auto`` means the GPUs where the driver shows any, and where the script's torch can use them; else CPU slots.
    ``is_our_torch``: the script runs in this interpreter; of another's torch nothing is known. ``cuda_options``: for
    ``CudaDevices``. Raises DeviceError where they are not there.
    """
    if spec == "auto":
        return _gpus_or_slots(installed_torch_cuda() if is_our_torch else None, cuda_options)
    kind, _, slots = spec.partition(":")
    if kind == "cpu":
        return CpuDevices(int(slots) if slots else None)
    from gpusched.devices.cuda import CudaDevices

    return CudaDevices(spec, **cuda_options)


def _gpus_or_slots(torch: tuple[str, str] | None, cuda_options: Mapping[str, Any]) -> Devices:
    """Return the GPUs that the driver shows, or CPU slots, which say why unless all that is here is for CPUs.

    The driver is waited for: eight GPUs without persistence mode take long, and CPU slots instead of GPUs do not help.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "?").strip()
    version, cuda = torch or ("", "")
    if version and not cuda:
        if not has_library():
            return CpuDevices()
        why = f"torch {version} is built for CPUs only"
    elif visible in ("", "-1", "NoDevFiles"):
        why = f"CUDA_VISIBLE_DEVICES={visible} hides them"
    elif not has_library():
        why = "there is no NVIDIA driver here (a container needs --gpus all)"
    else:
        from gpusched.devices.cuda import CudaDevices
        from gpusched.devices.nvml import NvmlAbsent

        try:
            return CudaDevices("cuda", **cuda_options)
        except NvmlAbsent as error:
            why = str(error)
    note = f"no GPU is used: {why}. Trials run on CPU slots (`devices: cuda` insists on GPUs)"
    return CpuDevices(note=note)


def has_library() -> bool:
    """Tell whether NVIDIA's driver is installed on this machine. Nothing is asked of it."""
    try:
        return bool(ctypes.CDLL("libnvidia-ml.so.1"))
    except OSError:
        return False


def installed_torch_cuda() -> tuple[str, str] | None:
    """Return torch's version, and the CUDA version that torch was built for or ""; None if torch is not installed.

    Torch is not imported.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    found = util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return None
    try:
        said = runpy.run_path(f"{found.submodule_search_locations[0]}/version.py")
    except Exception:  # an installation that is broken raises anything
        return version, ""
    return version, said.get("cuda") or ""

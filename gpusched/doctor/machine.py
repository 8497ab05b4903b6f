"""Checks of this machine for ``gpusched doctor``: obstacles to a search, now or later, and what to do about each.

Every check looks and changes nothing; none imports torch. ``doctor_checks`` runs all.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from gpusched.devices.choose import installed_torch_cuda
from gpusched.devices.cuda import GpuState, gpu_states
from gpusched.devices.nvml import Machine, NvmlAbsent
from gpusched.errors import DeviceError
from gpusched.text import count, show_bytes

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the machine. ``fail``: a search will not work as asked for; ``warn``: it will, with a loss."""

    state: Literal["ok", "warn", "fail"]
    name: str
    detail: str
    advice: str = ""


ok, warn, fail = partial(Check, "ok"), partial(Check, "warn"), partial(Check, "fail")


def doctor_checks(folder: Path) -> list[Check]:
    """Run all checks, in the order in which to read them. ``folder``: where experiments are to be kept.

    Takes seconds at most, also with a driver that hangs.
    """
    torch_cuda = installed_torch_cuda()
    checks = list(driver_checks(torch_cuda))
    has_gpus = any(check.name == "NVML" and check.state == "ok" for check in checks)
    checks.append(torch_check(torch_cuda, has_gpus=has_gpus))
    return [*checks, shm_check(), disk_check(folder)]


# ---------------------------------------------------------------- driver and GPUs


def driver_checks(torch_cuda: tuple[str, str] | None) -> Iterator[Check]:
    """Check driver and NVML and, if they answer, everything about the GPUs."""
    try:
        states, machine = gpu_states()
    except NvmlAbsent as error:
        told = f"{error}. Trials run on CPU slots"
        yield warn("driver", told, "nothing to do if CPU slots are meant")
        return
    except DeviceError as error:
        yield fail("driver", str(error), "look at `nvidia-smi` and `dmesg`; reset or reboot")
        return
    yield driver_check(machine, torch_cuda)
    names = ", ".join(gpu.name for gpu in machine.gpus)
    yield ok("NVML", f"{count(len(machine.gpus), 'GPU')}: {names}")
    for note in machine.notes:
        yield warn("NVML", note, "look at `nvidia-smi` and `dmesg`; reset or reboot")
    yield from map(gpu_check, states)


def driver_check(machine: Machine, torch_cuda: tuple[str, str] | None) -> Check:
    """Check that the driver's CUDA is of torch's major version or newer."""
    major, minor = machine.cuda // 1000, machine.cuda % 1000 // 10
    detail = f"{machine.version}, for CUDA up to {major}.{minor}"
    built_for = (torch_cuda or ("", ""))[1]
    wanted = built_for.partition(".")[0]
    if wanted.isdecimal() and int(wanted) > major:
        return fail(
            "driver",
            f"{detail}, but torch was built for CUDA {built_for}",
            "update the driver, or install a torch built for an older CUDA",
        )
    return ok("driver", detail)


def gpu_check(state: GpuState) -> Check:
    """Check whether one GPU can be used now, and what slows it."""
    label = state.label
    if state.leased_by:
        return ok(label, f"in use by {state.leased_by}")
    if state.busy:
        held = "held by" in state.busy
        advice = "wait, or ask its owner" if held else "see `nvidia-smi -q`"
        return Check("warn" if held else "fail", label, state.busy, advice)
    if state.notes:
        return warn(label, "; ".join(state.notes), "see `nvidia-smi -q -d PERFORMANCE,ECC`")
    return ok(label, "free")


# ---------------------------------------------------------------- what is installed


def torch_check(torch_cuda: tuple[str, str] | None, *, has_gpus: bool) -> Check:
    if torch_cuda is None:
        return fail("torch", "not installed", "pip install torch")
    version, cuda = torch_cuda
    number = re.match(r"(\d+)\.(\d+)", version)
    if number and (int(number[1]), int(number[2])) < (2, 8):  # as in pyproject.toml
        return fail("torch", f"{version} is older than 2.8", "pip install 'torch>=2.8'")
    if has_gpus and not cuda:
        return fail(
            "torch",
            f"{version} is built for CPUs only: it cannot use the GPUs that are here",
            "install the CUDA build (see https://pytorch.org/get-started/locally), or use devices: cpu",
        )
    return ok("torch", f"{version}, built for {'CUDA ' + cuda if cuda else 'CPUs'}")


# ---------------------------------------------------------------- the machine


def shm_check(path: Path = Path("/dev/shm")) -> Check:
    """Check shared memory: data loaders pass batches, and nccl passes tensors, through it."""
    advice = "in a container start it with --shm-size=8g or --ipc=host; else mount a larger tmpfs"
    harm = "too little, data loaders die with a bus error"
    return _room("/dev/shm", path, 64 * MIB, 1024 * MIB, harm, advice)


def disk_check(folder: Path) -> Check:
    """Check the disk that takes the experiments' folders: journals, checkpoints, logs."""
    place = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    if not os.access(place, os.W_OK):
        return fail("disk", f"{place} cannot be written", "choose another --dir")
    advice = "free some, run `gpusched gc`, or choose another --dir"
    harm = "checkpoints will not fit"
    return _room("disk", place, 1024 * MIB, 10 * 1024 * MIB, harm, advice)


def _room(name: str, path: Path, needed: int, wanted: int, harm: str, advice: str) -> Check:
    """Check that ``wanted`` bytes are free at ``path``. ``harm``: what follows from fewer than ``needed``."""
    try:
        space = shutil.disk_usage(path)
    except OSError as error:
        return fail(name, f"{path}: {error.strerror}", advice)
    detail = f"{show_bytes(space.free)} free of {show_bytes(space.total)} at {path}"
    if space.free < needed:
        return fail(name, f"{detail}: {harm}", advice)
    return warn(name, detail, advice) if space.free < wanted else ok(name, detail)

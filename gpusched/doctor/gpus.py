"""The checks of ``gpusched doctor`` that ask the NVIDIA driver. See ``machine.py``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpusched.devices.cuda import GpuState, gpu_states
from gpusched.devices.helper import World
from gpusched.devices.nvml import Gpu, Machine
from gpusched.devices.release import Processes
from gpusched.errors import DeviceError
from gpusched.text import count

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the machine. ``fail``: a search will not work as asked for; ``warn``: it will, with a loss."""

    name: str
    state: State
    detail: str
    advice: str = ""


def ok(name: str, detail: str) -> Check:
    return Check(name, "ok", detail)


def warn(name: str, detail: str, advice: str) -> Check:
    return Check(name, "warn", detail, advice)


def fail(name: str, detail: str, advice: str) -> Check:
    return Check(name, "fail", detail, advice)


def driver_checks(
    environ: Mapping[str, str] | None,
    world: World | None,
    processes: Processes | None,
    torch_cuda: tuple[str, str] | None,
) -> Iterator[Check]:
    """Check driver and NVML and, if they answer, everything about the GPUs."""
    try:
        states, machine = gpu_states(environ, world, processes)
    except DeviceError as error:
        yield absent_check(str(error), nvidia_cards())
        return
    yield driver_check(machine, torch_cuda)
    names = ", ".join(gpu.name for gpu in machine.gpus)
    yield ok("NVML", f"{count(len(machine.gpus), 'GPU')}: {names}")
    for note in machine.notes:
        yield warn("NVML", note, "look at `nvidia-smi` and `dmesg`; reset or reboot")
    yield _persistence([gpu for gpu in machine.gpus if not gpu.persistence])
    yield from map(gpu_check, states)


def nvidia_cards(folder: Path = PCI_DEVICES) -> int:
    """Count the NVIDIA GPUs on the bus, with or without a driver."""
    cards = 0
    for device in folder.glob("*"):
        with contextlib.suppress(OSError):
            is_nvidia = (device / "vendor").read_text().strip() == NVIDIA_VENDOR
            cards += is_nvidia and (device / "class").read_text().startswith(DISPLAY_CLASSES)
    return cards


def absent_check(why: str, cards: int) -> Check:
    if cards:
        there = f"{count(cards, 'NVIDIA card')} on the bus, but {why}"
        return fail("driver", there, "install or reload the NVIDIA driver")
    return warn("driver", f"{why}. Trials run on CPU slots", "nothing to do if CPU slots are meant")


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


def _persistence(off: Sequence[Gpu]) -> Check:
    if not off:
        return ok("persistence mode", "on")
    return warn(
        "persistence mode",
        f"off on {', '.join(gpu.label for gpu in off)}: the driver lets go of an idle GPU, and setting it up again "
        f"takes seconds at each start",
        "run nvidia-persistenced, or `sudo nvidia-smi -pm 1`",
    )


def gpu_check(state: GpuState) -> Check:
    """Check whether one GPU can be used now, and what slows it."""
    label = state.label
    notes = [note for note in state.notes if note != state.busy]
    if state.leased_by:
        return ok(label, f"in use by {state.leased_by}")
    if state.busy:
        held = state.busy.startswith("held by")
        advice = "wait, or ask its owner" if held else "see `nvidia-smi -q`"
        return Check(label, "warn" if held else "fail", state.busy, advice)
    if notes:
        return warn(label, "; ".join(notes), "see `nvidia-smi -q -d PERFORMANCE,ECC`")
    return ok(label, "free")

"""Checks of this machine for ``gpusched doctor``: obstacles to a search, now or later, and what to do about each.

Every check looks and changes nothing; none imports torch. ``doctor_checks`` runs all: checks of the machine are here,
checks that ask the driver in ``gpus.py``.
"""

from __future__ import annotations

import os
import resource
import runpy
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata, util
from pathlib import Path

from gpusched.devices.helper import World
from gpusched.devices.leases import lease_folder
from gpusched.devices.release import Processes, in_initial_pid_namespace
from gpusched.doctor.gpus import Check, State, driver_checks, fail, ok, warn
from gpusched.errors import DeviceError
from gpusched.text import show_bytes

__all__ = ["Check", "doctor_checks"]

MIB = 1 << 20
SHM_WANTED_BYTES = 1024 * MIB
SHM_NEEDED_BYTES = 64 * MIB
FILES_WANTED = 4096
FILES_NEEDED = 1024
DISK_WANTED_BYTES = 10 * 1024 * MIB
DISK_NEEDED_BYTES = 1024 * MIB


def doctor_checks(
    folder: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    world: World | None = None,
    processes: Processes | None = None,
) -> list[Check]:
    """Run all checks, in the order in which to read them. ``folder``: where experiments are to be kept (default: here).

    Takes seconds at most, also with a driver that hangs.
    """
    torch_cuda = installed_torch_cuda()
    checks = list(driver_checks(environ, world, processes, torch_cuda))
    has_gpus = any(check.name == "NVML" and check.state == "ok" for check in checks)
    checks.append(torch_check(torch_cuda, has_gpus=has_gpus))
    if has_gpus:
        checks.append(namespace_check(in_initial_pid_namespace()))
    checks.append(shm_check())
    checks.extend(limit_checks())
    checks.append(disk_check(folder or Path.cwd()))
    checks.append(lease_check(environ))
    return checks


# ---------------------------------------------------------------- what is installed


def torch_check(torch_cuda: tuple[str, str] | None, *, has_gpus: bool) -> Check:
    if torch_cuda is None:
        return fail("torch", "not installed", "pip install torch")
    version, cuda = torch_cuda
    if has_gpus and not cuda:
        return fail(
            "torch",
            f"{version} is built for CPUs only: it cannot use the GPUs that are here",
            "install the CUDA build (see https://pytorch.org/get-started/locally), or use devices: cpu",
        )
    return ok("torch", f"{version}, built for {'CUDA ' + cuda if cuda else 'CPUs'}")


# ---------------------------------------------------------------- the machine


def namespace_check(initial: bool) -> Check:
    if initial:
        return ok("pid namespace", "the machine's own: NVML's pids mean the same here")
    return warn(
        "pid namespace",
        "inside a container, where NVML's pids may mean something else: releases are confirmed by the process tree and "
        "memory, and a stranger on a GPU shows by its memory alone",
        "start the container with --pid=host, and mount one ~/.local/state/gpusched in all that share GPUs",
    )


def shm_check(path: Path = Path("/dev/shm")) -> Check:
    """Check shared memory: data loaders pass batches, and nccl passes tensors, through it."""
    try:
        space = shutil.disk_usage(path)
    except OSError as error:
        return fail("/dev/shm", f"cannot be used: {error.strerror}", "mount a tmpfs there")
    detail = f"{show_bytes(space.free)} free of {show_bytes(space.total)}"
    advice = "in a container start it with --shm-size=8g or --ipc=host; else remount it larger"
    if space.free < SHM_NEEDED_BYTES:
        return fail("/dev/shm", f"{detail}: too little, data loaders die with a bus error", advice)
    if space.free < SHM_WANTED_BYTES:
        return warn("/dev/shm", f"{detail}: little for data loaders and nccl", advice)
    return ok("/dev/shm", detail)


def disk_check(folder: Path) -> Check:
    """Check the disk that takes the experiments' folders: journals, checkpoints, logs."""
    place = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    try:
        space = shutil.disk_usage(place)
    except OSError as error:
        return fail("disk", f"{place}: {error.strerror}", "choose another --dir")
    detail = f"{show_bytes(space.free)} free of {show_bytes(space.total)} at {place}"
    advice = "free some, run `gpusched gc`, or choose another --dir"
    if not os.access(place, os.W_OK):
        return fail("disk", f"{place} cannot be written", "choose another --dir")
    if space.free < DISK_NEEDED_BYTES:
        return fail("disk", f"{detail}: checkpoints will not fit", advice)
    if space.free < DISK_WANTED_BYTES:
        return warn("disk", detail, advice)
    return ok("disk", detail)


def limit_checks(files: tuple[int, int] | None = None) -> Iterator[Check]:
    """Check the limit (soft, hard) of open files in this shell; None: ask the kernel."""
    soft, hard = files or resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if soft == resource.RLIM_INFINITY or soft >= FILES_WANTED:
        yield ok("open files", "unlimited" if soft == resource.RLIM_INFINITY else str(soft))
        return
    detail = f"{soft}: data loaders of several trials may need more"
    state: State = "warn" if soft >= FILES_NEEDED else "fail"
    yield Check("open files", state, detail, f"run `ulimit -n {most}` first")


def lease_check(environ: Mapping[str, str] | None = None) -> Check:
    """Check the folder of the locks that keep two experiments from one GPU."""
    try:
        return ok("GPU leases", f"in {lease_folder(environ)}")
    except DeviceError as error:
        return fail("GPU leases", str(error), "set XDG_STATE_HOME to a folder of your own")


# ---------------------------------------------------------------- torch, without importing it


def installed_torch_cuda() -> tuple[str, str] | None:
    """Return torch's version, and the CUDA version that torch was built for or ""; None if torch is not installed."""
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


def why_no_gpu() -> str:
    """Say why scripts that use this interpreter's torch can use no GPU; empty if they can, or without torch."""
    version, cuda = installed_torch_cuda() or ("", "")
    if cuda or not version:
        return ""
    return f"torch {version} is built for CPUs only"

"""What a recipe names, found on this machine: devices, and how trials are launched on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpusched.core.allocation import Devices as Allocated
from gpusched.core.allocation import DeviceState
from gpusched.devices.base import Device, Devices
from gpusched.devices.choose import parse_devices
from gpusched.doctor import torchbuild
from gpusched.errors import InputError
from gpusched.executors.local.settings import LEASE_S, LaunchSettings, uses_torch
from gpusched.recipe.recipe import Recipe


def launch_settings(recipe: Recipe) -> LaunchSettings:
    """What the executor needs of a recipe."""
    return LaunchSettings(
        script=recipe.script,
        metric=recipe.metric,
        args=recipe.args,
        cwd=recipe.cwd,
        env={name: value for name, value in recipe.env.items() if value is not None},
        launch=recipe.launch,
        python=str(recipe.python) if recipe.python else None,
        preload=recipe.preload,
        prestart=recipe.prestart,
        seed=recipe.seed,
        orphan_lease_s=float(os.environ.get("GPUSCHED_ORPHAN_LEASE_S", LEASE_S)),
    )


def devices_of(recipe: Recipe, experiment: Path, known: Sequence[str]) -> Devices:
    """The devices a recipe names; those in ``known`` where the experiment goes on. Raises DeviceError, InputError."""
    spec = recipe.devices if isinstance(recipe.devices, str) else ",".join(recipe.devices)
    options: dict[str, Any] = {"gpu_ids": recipe.gpu_ids, "experiment": experiment}
    if known and known[0].startswith("cpu:"):
        spec = f"cpu:{len(known)}"  # the machine may have fewer cores now
    elif known:
        spec, options["known"] = "cuda", known
    else:
        options["why_no_gpu"] = lambda: why_no_gpu(recipe)
    return parse_devices(spec, gpus_per_atom=recipe.gpus_per_atom, **options)


def why_no_gpu(recipe: Recipe) -> str:
    """Why the recipe's script can use no GPU, whatever the machine has; empty if it can."""
    ours = recipe.python is None and uses_torch(recipe.cwd / recipe.script)
    return torchbuild.why_no_gpu() if ours else ""


def quarantined_device(wanted: str, allocated: Allocated, inventory: Sequence[Device]) -> str:
    """A quarantined device by its id, its label, its GPU's number, or an unambiguous beginning of its id.

    Raises InputError with those that are in quarantine.
    """
    quarantined = [
        slot.id for slot in allocated.slots.values() if slot.state is DeviceState.QUARANTINED
    ]
    labels = {device.id: device.label for device in inventory}
    found = [name for name in quarantined if wanted in (name, labels.get(name))]
    found = found or [name for name in quarantined if labels.get(name) == f"GPU {wanted}"]
    found = found or [name for name in quarantined if wanted and name.startswith(wanted)]
    if len(found) != 1:
        there = ", ".join(f"{name} ({labels.get(name, '?')})" for name in quarantined) or "none"
        problem = "could be several" if found else "is not in quarantine"
        raise InputError(f"device {wanted} {problem}; in quarantine are: {there}")
    return found[0]

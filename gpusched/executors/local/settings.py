"""Settings read off the recipe: devices and environment; and the limits of an executor."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched.devices.base import Devices
from gpusched.devices.choose import parse_devices
from gpusched.recipe.recipe import Recipe

_FOREIGN = re.compile(
    r"PET_.*|TORCHELASTIC_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|GPUSCHED_(?!DEBUG$).*"
)
"""Variables of a torchrun (``PET_*`` are its defaults) or a trial around us that must not reach a trial."""

TETHER_S = 120.0
"""Time for which a trial goes on without a daemon; ``GPUSCHED_TETHER_S`` overrides it (for tests, mostly)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times that the executor allows. ``birth_s``: from the fork of a shim to its ranks, whose imports do not count."""

    birth_s: float = 60.0
    release_s: float = 60.0
    kill_margin_s: float = 15.0
    unkillable_after_s: float = 60.0
    #: How long a trial goes on without a daemon before it is asked to save and leave.
    tether_s: float = field(
        default_factory=lambda: float(os.environ.get("GPUSCHED_TETHER_S", TETHER_S))
    )


def given_env(recipe: Recipe) -> dict[str, str]:
    """Return the variables that the recipe sets and that have a value."""
    return {name: value for name, value in recipe.env.items() if value is not None}


def devices_of(recipe: Recipe, experiment: Path, known: Sequence[str]) -> Devices:
    """Find a recipe's devices; those in ``known`` where the experiment goes on. Raises DeviceError, InputError."""
    spec = recipe.devices if isinstance(recipe.devices, str) else ",".join(recipe.devices)
    options: dict[str, Any] = {"experiment": experiment, "atoms_per_gpu": recipe.atoms_per_gpu}
    if known and known[0].startswith("cpu:"):
        spec = f"cpu:{len(known)}"  # the machine may have fewer cores now
    elif known:
        spec, options["known"] = "cuda", known
    else:
        options["why_no_gpu"] = lambda: why_no_gpu(recipe)
    return parse_devices(spec, **options)


def why_no_gpu(recipe: Recipe) -> str:
    """Why the recipe's script can use no GPU, whatever the machine has; empty if it can."""
    ours = recipe.python is None
    from gpusched.doctor import machine  # asks for psutil and NVML's library

    return machine.why_no_gpu() if ours else ""


def environment_for_trials(recipe: Recipe) -> dict[str, str]:
    """Ours without what would confuse a trial, with what the recipe sets."""
    ours = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return {**ours, **given_env(recipe)}

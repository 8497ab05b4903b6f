"""From a ``Launch`` command to the frame that makes the server fork: folders, hyperparameters, devices, environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.core.commands import Launch
from gpusched.devices.base import Devices, Placement
from gpusched.devices.choose import parse_devices
from gpusched.executors.local.incarnation import Incarnation
from gpusched.folder.files import private_folder, write_aside
from gpusched.folder.reports import last_seq
from gpusched.protocol import LaunchSpec
from gpusched.recipe.recipe import Recipe
from gpusched.space import arguments

_DEVICES = re.compile(r"CUDA_|GPUSCHED_")
_FOREIGN = re.compile(
    r"PET_.*|TORCHELASTIC_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|GPUSCHED_(?!DEBUG$).*"
)
"""Variables of a torchrun (``PET_*`` are its defaults) or a trial around us that must not reach a trial."""


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial: depends on the experiment's and on the trial's number alone; below 2**31."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def prepare(incarnation: Incarnation, command: Launch, devices: Devices) -> LaunchSpec:
    """Make folders, ``hparams.json`` and the frame; return the frame.

    Raises OSError, and DeviceError for devices that are gone.
    """
    setting = incarnation.shared.setting
    private_folder(incarnation.paths.logs(incarnation.number))
    # All that is there was told before the incarnation before this one ended.
    incarnation.last_seq = last_seq(incarnation.paths.reports)
    incarnation.saved_step = incarnation.paths.newest_checkpoint()
    seed = seed_of(setting.recipe.seed, command.trial) if command.seed is None else command.seed
    content: dict[str, Any] = {"trial": command.trial, "seed": seed}
    content["hparams"] = dict(command.hparams)
    known_seq = setting.seq_of(incarnation.trial)
    if known_seq > incarnation.last_seq:  # the disk refused to keep some
        incarnation.last_seq = content["seq"] = known_seq
    _write_hparams(incarnation.paths.hparams, json.dumps(content).encode() + b"\n")
    own = private_folder(incarnation.paths.own)
    args = arguments.fill(setting.recipe.args, command.hparams, command.trial, str(own))
    spec = incarnation.spec = _spec(incarnation, devices.place(command.devices), args)
    return spec


def _spec(incarnation: Incarnation, placement: Placement, args: list[str]) -> LaunchSpec:
    setting, recipe, cpus = (
        incarnation.shared.setting,
        incarnation.shared.setting.recipe,
        placement.rank_cpus,
    )
    cwd = recipe.cwd
    if cwd == Path("private"):
        cwd = incarnation.paths.own
    return LaunchSpec(
        trial=incarnation.trial,
        incarnation=incarnation.number,
        ranks=placement.ranks,
        dir=str(incarnation.paths.root),
        experiment_dir=str(setting.paths.root),
        script=str(recipe.cwd / recipe.script),
        args=args,
        cwd=str(cwd),
        env=_environment(incarnation, placement),
        rank_env=[_of_rank(recipe, one) for one in placement.rank_env],
        rank_cpus=None if cpus is None else [list(one) for one in cpus],
        python=str(recipe.python or sys.executable),
        epoch=setting.epoch,
        tether_s=incarnation.shared.limits.tether_s,
        leave_grace_s=recipe.leave_grace_s,
        module=recipe.module or "",
    )


def _of_rank(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, str]:
    """Let the recipe outrank our defaults, but not choose which rank a process is, and on which devices."""
    theirs = {name: value for name, value in given_env(recipe).items() if name in environment}
    return {
        **environment,
        **{name: theirs[name] for name in theirs if not _DEVICES.match(name)},
    }


def _environment(incarnation: Incarnation, placement: Placement) -> dict[str, str]:
    setting = incarnation.shared.setting
    return {
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(placement.threads_per_rank),
        **given_env(setting.recipe),
        "GPUSCHED_DIR": str(setting.paths.root),
        "GPUSCHED_TRIAL": str(incarnation.trial),
        "GPUSCHED_TRIAL_DIR": str(incarnation.paths.own),
        "GPUSCHED_INCARNATION": str(incarnation.number),
        "GPUSCHED_ATOMS": str(len(incarnation.devices)),
        "GPUSCHED_DEVICE": placement.kind,
        **({"GPUSCHED_NODE": setting.node} if setting.node else {}),
    }


def _write_hparams(path: Path, data: bytes) -> None:
    """Written at every launch and not synced: the journal has it all, and a power cut ends every launch."""
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    write_aside(path, data).replace(path)


# ---------------------------------------------------------------- what the recipe says


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
        options["why_no_gpu"] = partial(_why_no_gpu, recipe)
    return parse_devices(spec, **options)


def _why_no_gpu(recipe: Recipe) -> str:
    """Why the recipe's script can use no GPU, whatever the machine has; empty if it can."""
    from gpusched.doctor import machine  # asks for psutil and NVML's library

    return machine.why_no_gpu() if recipe.python is None else ""


def environment_for_trials(recipe: Recipe) -> dict[str, str]:
    """Ours without what would confuse a trial, with what the recipe sets."""
    ours = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return {**ours, **given_env(recipe)}

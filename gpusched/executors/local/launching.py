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
from gpusched.executors.local.server import given_env
from gpusched.folder.files import private_folder, write_aside
from gpusched.folder.reports import last_seq
from gpusched.protocol import LaunchSpec
from gpusched.recipe.recipe import Recipe
from gpusched.space.space import command_line

TETHER_S = 120.0
"""Time for which a trial continues without a daemon; ``GPUSCHED_TETHER_S`` overrides it (for tests, mostly)."""
_DEVICES = re.compile(r"CUDA_|GPUSCHED_")


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial: depends on the experiment's and on the trial's number alone; below 2**31."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def prepare(incarnation: Incarnation, command: Launch, devices: Devices) -> LaunchSpec:
    """Make folders, ``hparams.json`` and the frame; return the frame.

    Raises OSError, and DeviceError for devices that are gone.
    """
    setting, paths = incarnation.shared.setting, incarnation.paths
    recipe, placement = setting.recipe, devices.place(command.devices)
    private_folder(paths.logs(incarnation.number))
    own = private_folder(paths.own)
    # All that is there was told before the incarnation before this one ended.
    incarnation.last_seq = last_seq(paths.reports)
    incarnation.saved_step = paths.newest_checkpoint()
    seed = seed_of(recipe.seed, command.trial) if command.seed is None else command.seed
    content: dict[str, Any] = {"trial": command.trial, "seed": seed}
    content["hparams"] = dict(command.hparams)
    known_seq = setting.seq_of(incarnation.trial)
    if known_seq > incarnation.last_seq:  # the disk refused to keep some
        incarnation.last_seq = content["seq"] = known_seq
    _write_hparams(paths.hparams, json.dumps(content).encode() + b"\n")
    cpus = placement.rank_cpus
    spec = incarnation.spec = LaunchSpec(
        trial=incarnation.trial,
        incarnation=incarnation.number,
        ranks=placement.ranks,
        dir=str(paths.root),
        experiment_dir=str(setting.paths.root),
        script=str(recipe.cwd / recipe.script),
        args=command_line(recipe.args, command.hparams, command.trial, str(own)),
        cwd=str(own if recipe.cwd == Path("private") else recipe.cwd),
        env=_environment(incarnation, placement),
        rank_env=[_of_rank(recipe, one) for one in placement.rank_env],
        rank_cpus=None if cpus is None else [list(one) for one in cpus],
        python=str(recipe.python or sys.executable),
        epoch=setting.epoch,
        tether_s=float(os.environ.get("GPUSCHED_TETHER_S", TETHER_S)),
        leave_grace_s=recipe.leave_grace_s,
        module=recipe.module or "",
    )
    return spec


def _of_rank(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, str]:
    """Let the recipe outrank our defaults, but not choose which rank a process is, and on which devices."""
    theirs = given_env(recipe)
    own = {name for name in environment if _DEVICES.match(name) or name not in theirs}
    return {name: (environment if name in own else theirs)[name] for name in environment}


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


def devices_of(recipe: Recipe, experiment: Path, known: Sequence[str]) -> Devices:
    """Find a recipe's devices; those in ``known`` where the experiment continues. Raises DeviceError, InputError."""
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

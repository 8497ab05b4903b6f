"""From a ``Launch`` command to the frame that makes the server fork: folders, hyperparameters, environment."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.core.commands import Launch
from gpusched.devices.base import Devices, Placement
from gpusched.errors import GpuschedError
from gpusched.executors.local.incarnation import Incarnation, Shared
from gpusched.executors.local.server import Server
from gpusched.executors.local.settings import given_env
from gpusched.folder.files import private_folder, write_aside
from gpusched.folder.reports import last_seq
from gpusched.protocol import LaunchSpec, Span
from gpusched.space import arguments

_DEVICES = re.compile(r"CUDA_|GPUSCHED_")


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial: depends on the experiment's and on the trial's number alone; below 2**31."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Launcher:
    """Launcher of incarnations."""

    def __init__(self, shared: Shared, server: Server, devices: Devices) -> None:
        self._setting = shared.setting
        self._recipe = shared.setting.recipe
        self._tether_s = shared.limits.tether_s
        self._server = server
        self._devices = devices
        self._end = shared.end

    def launch(self, incarnation: Incarnation, command: Launch) -> None:
        """Have the server fork it; one that cannot be launched has ended."""
        try:
            spec = self.prepare(incarnation, command)
            self._devices.take(command.devices)
        except (OSError, GpuschedError) as problem:
            why = f"it could not be launched: {problem}"
            self._end(incarnation, incarnation.exited("lost", why))
            return
        self._server.launch(spec)

    def prepare(self, incarnation: Incarnation, command: Launch) -> LaunchSpec:
        """Make folders, ``hparams.json`` and the frame; return the frame.

        Raises OSError, and DeviceError for devices that are gone.
        """
        private_folder(incarnation.paths.logs(incarnation.number))
        # All that is there was told before the incarnation before this one ended.
        incarnation.last_seq = last_seq(incarnation.paths.reports)
        incarnation.saved_step = incarnation.paths.newest_checkpoint()
        content = self._hparams(command)
        known_seq = self._setting.seq_of(incarnation.trial)
        if known_seq > incarnation.last_seq:  # the disk refused to keep some
            incarnation.last_seq = content["seq"] = known_seq
        _write_hparams(incarnation.paths.hparams, json.dumps(content).encode() + b"\n")
        placement = self._devices.place(command.devices)
        args = arguments.fill(self._recipe.args, command.hparams)
        spec = incarnation.spec = self._spec(incarnation, placement, args)
        return spec

    def withdraw(self, incarnation: Incarnation) -> bool:
        """Take back a launch that has not begun. True: it will not begin."""
        return incarnation.spec is not None and self._server.withdraw(incarnation.spec)

    def _hparams(self, command: Launch) -> dict[str, Any]:
        seed = command.seed
        if seed is None:
            seed = seed_of(self._recipe.seed, command.trial)
        return {
            "trial": command.trial,
            "seed": seed,
            "hparams": dict(command.hparams),
        }

    def _spec(self, incarnation: Incarnation, placement: Placement, args: list[str]) -> LaunchSpec:
        recipe, cpus = self._recipe, placement.rank_cpus
        span = self._setting.span_of(incarnation.trial)
        return LaunchSpec(
            trial=incarnation.trial,
            incarnation=incarnation.number,
            ranks=placement.ranks,
            dir=str(incarnation.paths.root),
            experiment_dir=str(self._setting.paths.root),
            script=str(recipe.cwd / recipe.script),
            args=args,
            cwd=str(self._working_directory(incarnation)),
            env=self._environment(incarnation, placement, span),
            rank_env=[
                self._of_rank(one, span, rank) for rank, one in enumerate(placement.rank_env)
            ],
            rank_cpus=None if cpus is None else [list(one) for one in cpus],
            python=str(recipe.python or sys.executable),
            epoch=self._setting.epoch,
            tether_s=self._tether_s,
            span=span,
        )

    def _working_directory(self, incarnation: Incarnation) -> Path:
        if self._recipe.cwd != Path("private"):
            return self._recipe.cwd
        private_folder(incarnation.paths.own)
        return incarnation.paths.own

    def _of_rank(
        self, environment: Mapping[str, str], span: Span | None, local_rank: int
    ) -> dict[str, str]:
        """Let the recipe outrank our defaults, but not choose which rank a process is, and on which devices."""
        if span is not None:
            on = dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), span.interface)
            environment = {**environment, **on}
        theirs = {
            name: value for name, value in given_env(self._recipe).items() if name in environment
        }
        return {
            **environment,
            **{name: theirs[name] for name in theirs if not _DEVICES.match(name)},
            **(_ranks(span, local_rank) if span is not None else {}),
        }

    def _environment(
        self, incarnation: Incarnation, placement: Placement, span: Span | None
    ) -> dict[str, str]:
        return {
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(placement.threads_per_rank),
            **given_env(self._recipe),
            "GPUSCHED_DIR": str(self._setting.paths.root),
            "GPUSCHED_TRIAL": str(incarnation.trial),
            "GPUSCHED_TRIAL_DIR": str(incarnation.paths.own),
            "GPUSCHED_INCARNATION": str(incarnation.number),
            "GPUSCHED_ATOMS": str(len(incarnation.devices) if span is None else span.atoms),
            "GPUSCHED_DEVICE": placement.kind,
            **({"GPUSCHED_NODE": self._setting.node} if self._setting.node else {}),
        }


def _ranks(span: Span, local_rank: int) -> dict[str, str]:
    """Say to a rank what torchrun's agent, which knows the ranks of its own node alone, cannot."""
    rank, size = str(span.first_rank + local_rank), str(span.world_size)
    return {
        "RANK": rank,
        "ROLE_RANK": rank,
        "WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "GROUP_RANK": str(span.part),
        "GROUP_WORLD_SIZE": str(span.parts),
    }


def _write_hparams(path: Path, data: bytes) -> None:
    """Written at every launch and not synced: the journal has it all, and a power cut ends every launch."""
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    write_aside(path, data).replace(path)

"""From a ``Launch`` command to the frame that makes the server fork: folders, hyperparameters, environment."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.core.decisions import Launch
from gpusched.devices.base import Devices, Placement
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.server import Server
from gpusched.executors.local.settings import LaunchSettings
from gpusched.folder.files import private_folder, write_aside
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import last_seq
from gpusched.protocol import LaunchSpec
from gpusched.space import arguments

_DEVICES = re.compile(r"CUDA_|GPUSCHED_")


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial: depends on the experiment's and on the trial's number alone; below 2**31."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Launcher:
    """Keeps what cannot be sent yet because the server is not up."""

    def __init__(
        self,
        paths: ExperimentPaths,
        devices: Devices,
        settings: LaunchSettings,
        server: Server,
        epoch: int = 1,
    ) -> None:
        self._paths = paths
        self._devices = devices
        self._settings = settings
        self._server = server
        self._epoch = epoch
        self._waiting: dict[int, Incarnation] = {}

    def prepare(self, it: Incarnation, command: Launch, known_seq: int = 0) -> None:
        """Folders, ``hparams.json`` and the frame. ``known_seq``: of the last report that has come in.

        Raises OSError, and DeviceError for devices that are gone.
        """
        private_folder(it.paths.logs(it.number))
        # All that is there was told before the incarnation before this one ended.
        it.last_seq = last_seq(it.paths.reports)
        it.saved_step = it.newest_checkpoint()
        content = self._hparams(command)
        if known_seq > it.last_seq:  # the disk refused to keep some
            it.last_seq = content["seq"] = known_seq
        _write_hparams(it.paths.hparams, json.dumps(content).encode() + b"\n")
        placement = self._devices.take(command.devices)
        args = arguments.fill(self._settings.args, command.hparams)
        it.spec = self._spec(it, placement, args)

    def send(self, it: Incarnation) -> None:
        """Now, or as soon as the server is up."""
        self._server.want()
        if not (self._server.ready and it.spec is not None and self._server.launch(it.spec)):
            self._waiting[it.trial] = it

    def flush(self) -> None:
        """The server is up."""
        waiting, self._waiting = self._waiting, {}
        for it in waiting.values():
            self.send(it)

    def withdraw(self, it: Incarnation) -> bool:
        """True if it had not been sent, and now will not be."""
        return self._waiting.pop(it.trial, None) is not None

    def _hparams(self, command: Launch) -> dict[str, Any]:
        return {
            "trial": command.trial,
            "seed": seed_of(self._settings.seed, command.trial),
            "hparams": dict(command.hparams),
        }

    def _spec(self, it: Incarnation, placement: Placement, args: list[str]) -> LaunchSpec:
        settings, cpus = self._settings, placement.rank_cpus
        return LaunchSpec(
            trial=it.trial,
            incarnation=it.number,
            ranks=placement.ranks,
            dir=str(it.paths.root),
            experiment_dir=str(self._paths.root),
            script=str(settings.absolute_script),
            args=args,
            cwd=str(self._working_directory(it)),
            env=self._environment(it, placement),
            rank_env=[self._of_rank(one) for one in placement.rank_env],
            rank_cpus=None if cpus is None else [list(one) for one in cpus],
            python=settings.interpreter,
            epoch=self._epoch,
            lease_s=settings.orphan_lease_s,
        )

    def _working_directory(self, it: Incarnation) -> Path:
        if not self._settings.has_private_cwd:
            return self._settings.cwd
        private_folder(it.paths.own)
        return it.paths.own

    def _of_rank(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What the recipe sets outranks our defaults, but not which devices a rank has."""
        theirs = {name: value for name, value in self._settings.env.items() if name in environment}
        return {
            **environment,
            **{name: theirs[name] for name in theirs if not _DEVICES.match(name)},
        }

    def _environment(self, it: Incarnation, placement: Placement) -> dict[str, str]:
        return {
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(placement.threads_per_rank),
            **self._settings.env,
            "GPUSCHED_DIR": str(self._paths.root),
            "GPUSCHED_TRIAL": str(it.trial),
            "GPUSCHED_TRIAL_DIR": str(it.paths.own),
            "GPUSCHED_INCARNATION": str(it.number),
            "GPUSCHED_ATOMS": str(len(it.devices)),
            "GPUSCHED_DEVICE": placement.kind,
        }


def _write_hparams(path: Path, data: bytes) -> None:
    """Written at every launch and not synced: the journal has it, and a power cut ends every launch."""
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    write_aside(path, data).replace(path)

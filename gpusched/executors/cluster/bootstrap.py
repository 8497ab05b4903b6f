"""Bootstraps find the nodes of a cluster and start one ordinary process on each; the rest is the cluster executor's.

    local:2        two nodes of this machine, of CPU slots that share its cores
    local:2x4      the same, of four slots each
    local:1@HOST   a node of this machine; the daemon listens at this address of it, where others may join by hand
    ssh:A,B        hosts by ssh; slurm, slurm:JOB: an allocation (``hosts.py``)
    HOST:PORT      a Ray cluster (``ray.py``); auto: the one of this machine

No word of a bootstrap proves that a process has ended: a node is lost when its own line is silent.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gpusched.errors import InputError
from gpusched.folder.files import private_folder

_LOCAL = re.compile(r"local:([1-9][0-9]?)(?:x([1-9][0-9]{0,3}))?(?:@(.+))?")
_PATIENCE_S = 30.0
"""Time that nodes which were told to leave have to tidy up, on a slow disk too; a killed one leaves its folder."""


class NodeOffer(Struct, frozen=True):
    """A machine that may be used. ``address``: the host by which the daemon and other nodes reach it.

    ``devices``: those that its process may use, as a recipe names them.
    """

    name: str
    address: str
    devices: str


class Bootstrap(Protocol):
    """A way to the nodes of a cluster. Calls may take seconds; they come from one thread at a time."""

    def nodes(self) -> list[NodeOffer]:
        """List the nodes there are; more may be there at a later call. Raises GpuschedError where none can be had."""
        ...

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        """Start a process on this node, outside the bootstrap's own process tree; ``env`` is added to its environment.

        Called again where the node is silent: the process itself sees to it that there is one at a time.
        Raises GpuschedError.
        """
        ...

    def interrupt(self) -> None:
        """End the call that is under way soon, as one that failed; called from another thread."""
        ...

    def close(self) -> None:
        """Give everything back. The nodes have been told to leave."""
        ...


def bootstrap_for(address: str, shared: Path, *, insecure: bool = False) -> Bootstrap:
    """Return the way to the cluster at ``address``. ``shared``: the experiment's folder, the same on every node.

    ``insecure``: accept a Ray cluster without a token.

    Raises InputError for an address of no known form, GpuschedError where the cluster cannot be used.
    """
    kind, _, rest = address.partition(":")
    if found := _LOCAL.fullmatch(address):
        nodes, host = int(found[1]), found[3] or "127.0.0.1"
        cpus = int(found[2]) if found[2] else max(1, len(os.sched_getaffinity(0)) // nodes)
        return LocalBootstrap(
            [NodeOffer(f"node{n}", host, f"cpu:{cpus}") for n in range(nodes)], shared
        )
    if kind == "local":
        raise InputError(
            f"cluster: {address!r}: write local:2 for two nodes of this machine, local:2x4 for four slots"
        )
    if kind in ("ssh", "slurm"):
        from gpusched.executors.cluster.hosts import SlurmBootstrap, SshBootstrap

        return SshBootstrap(rest, shared) if kind == "ssh" else SlurmBootstrap(rest, shared)
    from gpusched.executors.cluster.ray import RayBootstrap

    return RayBootstrap(address, shared, insecure=insecure)


class LocalBootstrap:
    """Nodes as processes of this machine, each with a log in the shared folder."""

    def __init__(self, offers: list[NodeOffer], shared: Path) -> None:
        self._offers = offers
        self._logs = shared / "cluster"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self) -> list[NodeOffer]:
        return self._offers

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        if name in self._started and self._started[name].poll() is None:
            return
        log = private_folder(self._logs) / f"{name}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o600), "ab") as out:
            self._started[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **env},
                cwd="/",
                start_new_session=True,
            )

    def interrupt(self) -> None:
        """Do nothing: no call takes long."""

    def close(self) -> None:
        for process in self._started.values():
            for end in (process.terminate, process.kill):
                try:
                    process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    end()
            process.wait()

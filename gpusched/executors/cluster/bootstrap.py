"""Bootstraps find the nodes of a cluster and start one ordinary process on each; the rest is the cluster executor's.

    local:2        two nodes of this machine, of CPU slots that share its cores
    local:2x4      the same, of four slots each
    local:1@HOST   a node of this machine; the daemon listens at this address of it, where others may join by hand
    HOST:PORT      a Ray cluster (``ray.py``, imported where it is asked for); auto: the one of this machine

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
_PATIENCE_S = 5.0
"""Time that nodes which were told to leave have to do so."""


class NodeOffer(Struct, frozen=True):
    """A machine that may be used. ``address``: the host by which the daemon and other nodes reach it.

    ``gpus``: UUIDs or indices; without any the node offers ``cpus`` CPU slots.
    """

    name: str
    address: str
    gpus: list[str] = []
    cpus: int = 1

    @property
    def devices(self) -> str:
        """The same as a recipe names them."""
        if not self.gpus:
            return f"cpu:{self.cpus}"
        return "cuda:" * self.gpus[0].isdigit() + ",".join(self.gpus)


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

    def close(self) -> None:
        """Give everything back. The nodes have been told to leave."""
        ...


def bootstrap_for(address: str, shared: Path, *, insecure: bool = False) -> Bootstrap:
    """Return the way to the cluster at ``address``. ``shared``: the experiment's folder, the same on every node.

    ``insecure``: accept a Ray cluster without a token.

    Raises InputError for an address of no known form, GpuschedError where the cluster cannot be used.
    """
    if found := _LOCAL.fullmatch(address):
        nodes = int(found[1])
        cpus = int(found[2]) if found[2] else max(1, len(os.sched_getaffinity(0)) // nodes)
        return LocalBootstrap(nodes, cpus, shared, found[3] or "127.0.0.1")
    if address.startswith("local"):
        raise InputError(
            f"cluster: {address!r}: write local:2 for two nodes of this machine, local:2x4 for four slots"
        )
    from gpusched.executors.cluster.ray import RayBootstrap

    return RayBootstrap(address, shared, insecure=insecure)


class LocalBootstrap:
    """``nodes`` processes of this machine, each with ``cpus`` slots; ``host``: an address of this machine."""

    def __init__(self, nodes: int, cpus: int, shared: Path, host: str = "127.0.0.1") -> None:
        self._offers = [NodeOffer(f"node{number}", host, cpus=cpus) for number in range(nodes)]
        self._logs = shared / "cluster"
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def nodes(self) -> list[NodeOffer]:
        return self._offers

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        log = os.open(
            private_folder(self._logs) / f"{name}.log",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        self._started = [one for one in self._started if one[1].poll() is None]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._started.append((name, process))

    def close(self) -> None:
        for _, process in self._started:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""Bootstraps find the nodes of a cluster and keep one ordinary process running on each; the rest is the executor's.

    auto, HOST:PORT   a Ray cluster (``ray.py``): the one of this machine, or by the address of its GCS
    local:2, local:2x4   for tests: two processes of this machine, of CPU slots that share its cores

A node that is not listed any more is gone, as the cluster's own word goes; one that is listed may be silent all the
same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

import gpusched
from gpusched.errors import InputError
from gpusched.folder.files import private_folder
from gpusched.recipe.recipe import Recipe

_LOCAL = re.compile(r"local:([1-9][0-9]?)(?:x([1-9][0-9]{0,3}))?")
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
        """Take up new nodes, see to it that the process of each runs, and list all.

        Raises GpuschedError where none can be had.
        """
        ...

    def interrupt(self) -> None:
        """End the call that is under way soon, as one that failed; called from another thread."""
        ...

    def close(self) -> None:
        """Give everything back. The nodes have been told to leave."""
        ...


def bootstrap_for(recipe: Recipe, shared: Path, say: Callable[[str], None]) -> Bootstrap:
    """Return the way to the recipe's cluster. ``shared``: the experiment's folder, the same on every node.

    Raises InputError for an address of no known form, GpuschedError where the cluster cannot be used.
    """
    address = recipe.cluster or ""
    if found := _LOCAL.fullmatch(address):
        nodes = int(found[1])
        cpus = int(found[2]) if found[2] else max(1, len(os.sched_getaffinity(0)) // nodes)
        return LocalBootstrap(
            [NodeOffer(f"node{n}", "127.0.0.1", f"cpu:{cpus}") for n in range(nodes)], shared
        )
    if address.partition(":")[0] == "local":
        raise InputError(
            f"cluster: {address!r}: write local:2 for two nodes of this machine, local:2x4 for four slots"
        )
    from gpusched.executors.cluster.ray import RayBootstrap, Wanted

    wanted = Wanted.of(recipe)
    bare = address.removeprefix("insecure:")
    ray = RayBootstrap(bare, shared, insecure=bare != address, wanted=wanted)
    say(f"speaking with Ray at {ray.address} by its interpreter here, {ray.python}")
    return ray


def node_command(shared: Path, name: str, devices: str) -> list[str]:
    """Return the command of a node's process."""
    return [sys.executable, "-m", "gpusched.executors.cluster.node", str(shared), name, devices]


def node_environment() -> dict[str, str]:
    """Return the variables that travel to every node; a node has all others of its own, and the recipe's ``env``.

    PYTHONPATH is the daemon's, and ends with the place of gpusched.
    """
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [*filter(None, ours), str(Path(gpusched.__file__).parent.parent)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}


class LocalBootstrap:
    """Nodes as processes of this machine, each with a log in the shared folder."""

    def __init__(self, offers: list[NodeOffer], shared: Path) -> None:
        self._offers = offers
        self._shared = shared
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self) -> list[NodeOffer]:
        for offer in self._offers:
            process = self._started.get(offer.name)
            if process is None or process.poll() not in (None, 0):  # 0: it has left
                self._start(offer)
        return self._offers

    def _start(self, offer: NodeOffer) -> None:
        log = private_folder(self._shared / "cluster") / f"{offer.name}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o600), "ab") as out:
            self._started[offer.name] = subprocess.Popen(
                node_command(self._shared, offer.name, offer.devices),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **node_environment()},
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

"""Bootstraps find the nodes of a cluster and keep one ordinary process running on each; the rest is the executor's.

    auto, HOST:PORT      a Ray cluster, as Ray finds it, or by the address of its GCS
    local:2, local:2x4   for tests: two processes of this machine, of CPU slots that share its cores

A node that is not listed any more is gone, as the cluster's own word goes; one that is listed may be silent all the
same. Everything of Ray happens in a child process, ``ray_bridge.py``: one that hangs or ends is replaced, and nodes and
trials never depend on one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

import gpusched
from gpusched.errors import DeviceError, InputError
from gpusched.folder.files import private_folder
from gpusched.recipe.recipe import Recipe

_LOCAL = re.compile(r"local:([1-9][0-9]?)(?:x([1-9][0-9]{0,3}))?")
_ADDRESS = re.compile(r"auto|[^\s/]+:[0-9]{1,5}")
_PATIENCE_S = 30.0
"""Time that nodes which were told to leave have to tidy up, on a slow disk too; a killed one leaves its folder."""
CALL_S = 150.0
"""Time for a call: a node's first includes the start of an anchor; the same to import Ray and to join the cluster."""
CLOSE_S = 20.0
"""Time for a call that gives everything back: a person waits for the end."""
END_S = 5.0
"""Time for a bridge to leave the cluster."""


class NodeOffer(msgspec.Struct, frozen=True):
    """A machine that may be used. ``devices``: those that its process may use, as a recipe names them."""

    name: str
    devices: str


class Bootstrap(Protocol):
    """A way to the nodes of a cluster. Calls may take seconds; they come from one thread at a time."""

    #: Address by which the nodes reach this machine.
    host: str
    #: Why nodes are left out of the last listing.
    refused: Mapping[str, str]

    def nodes(self) -> list[NodeOffer]:
        """Take up new nodes, see to it that the process of each runs, and list all. Raises GpuschedError."""
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
        return LocalBootstrap([NodeOffer(f"node{n}", f"cpu:{cpus}") for n in range(nodes)], shared)
    ray = RayBootstrap(address, shared, **wanted(recipe))
    say(f"joined the Ray cluster at {ray.address}")
    if os.environ.get("RAY_AUTH_MODE") != "token":
        say("it has no token: whoever reaches it can run code on its nodes (see docs/cluster.md)")
    return ray


def node_command(shared: Path) -> list[str]:
    """Return the command of a node's process; its name and its devices follow."""
    return [sys.executable, "-m", "gpusched.executors.cluster.node", str(shared)]


def node_environment() -> dict[str, str]:
    """Return the variables that travel to every node; a node has all others of its own, and the recipe's ``env``.

    PYTHONPATH is the daemon's, and ends with the place of gpusched.
    """
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [*filter(None, ours), str(Path(gpusched.__file__).parent.parent)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}


def _start(argv: list[str], log: Path, *descriptors: int) -> subprocess.Popen[bytes]:
    """Start a process apart from this one; what it says is added to a log that is the user's alone."""
    with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **node_environment()},
            cwd="/",
            pass_fds=descriptors,
            start_new_session=True,
        )


class LocalBootstrap:
    """Nodes as processes of this machine, each with a log in the shared folder."""

    host = "127.0.0.1"

    def __init__(self, offers: list[NodeOffer], shared: Path) -> None:
        self._offers, self._shared = offers, shared
        self.refused: Mapping[str, str] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self) -> list[NodeOffer]:
        for offer in self._offers:
            process = self._started.get(offer.name)
            if process is None or process.poll() not in (None, 0):  # 0: it has left
                log = private_folder(self._shared / "cluster") / f"{offer.name}.log"
                words = [*node_command(self._shared), offer.name, offer.devices]
                self._started[offer.name] = _start(words, log)
        return self._offers

    def close(self) -> None:
        for process in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            process.kill()
            process.wait()


# ---------------------------------------------------------------- Ray


def wanted(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe asks Ray for. Raises InputError where it names single GPUs.

    ``kind``: GPU or CPU, or empty: GPUs, unless no node has one; ``most``: devices of each node.
    """
    if recipe.devices.startswith(("cuda:", "GPU-", "MIG-")):
        raise InputError(
            "devices: Ray chooses the GPUs of each node: write cuda for all that are free, cpu:N, or auto"
        )
    kind, _, most = recipe.devices.partition(":")
    kinds = {"auto": "", "cuda": "GPU", "cpu": "CPU"}
    return {"kind": kinds[kind], "most": int(most or 0) or None, "max_nodes": recipe.max_nodes}


class RayBootstrap:
    """Nodes of the Ray cluster at ``address``, ``HOST:PORT`` of its GCS or ``auto``, and of them what is ``wanted``.

    Raises InputError, or DeviceError where the cluster cannot be used.
    """

    def __init__(self, address: str, shared: Path, **wanted: Any) -> None:
        if not _ADDRESS.fullmatch(address):
            raise InputError(
                f"cluster: {address!r} is no address of a Ray cluster. Write auto (the cluster of this machine, or of "
                f"RAY_ADDRESS), HOST:PORT of its GCS, or local:2 for two nodes of CPU slots on this machine (tests). "
                f"From outside of the cluster: ray job submit -- gpusched run RECIPE --cluster auto"
            )
        self.address = address
        self._shared = shared.resolve()
        whole = f"{os.getuid()} {self._shared}"
        #: Namespace, the same at a resume.
        self._experiment = "gpusched-" + hashlib.sha256(whole.encode()).hexdigest()[:12]
        self._given = {"command": node_command(self._shared), "env": node_environment(), **wanted}
        self._offers: list[NodeOffer] = []
        self.refused: Mapping[str, str] = {}
        self._bridge: _Bridge | None = self._join(CALL_S)

    def nodes(self) -> list[NodeOffer]:
        """See ``Bootstrap``; the nodes as before while Ray is silent, which says nothing about them.

        Raises DeviceError where it has named none yet.
        """
        try:
            told = self._call("reserve", self._given)
        except DeviceError:
            if not self._offers:
                raise
            return self._offers
        now, self.refused = [NodeOffer(**offer) for offer in told["offers"]], told["refused"]
        # One whose anchor is slow has no offer, and is still ours.
        late = {*told["kept"]} - {offer.name for offer in now}
        self._offers = [*now, *(offer for offer in self._offers if offer.name in late)]
        return self._offers

    def close(self) -> None:
        with contextlib.suppress(DeviceError):
            self._call("close", {}, CLOSE_S)
        self.leave()

    def leave(self) -> None:
        """End the bridge; the nodes stay reserved, for a resume."""
        if self._bridge is not None:
            self._bridge.end()
            self._bridge = None

    def _call(self, call: str, given: Mapping[str, object], limit_s: float = CALL_S) -> Any:
        """Have the bridge answer a call, a new one where the last has ended. Raises DeviceError."""
        self._bridge = self._bridge or self._join(limit_s)
        try:
            return self._bridge.ask(call, given, limit_s)
        except BridgeEnded as error:
            self.leave()
            raise DeviceError(f"the Ray cluster at {self.address} is silent: {error}") from None

    def _join(self, limit_s: float) -> _Bridge:
        folder = private_folder(self._shared / "cluster")
        bridge = _Bridge([self._experiment, str(self._shared)], folder / "ray.log")
        try:
            self.address, self.host = bridge.ask("join", {"address": self.address}, limit_s)
        except (BridgeEnded, DeviceError) as error:
            bridge.end()
            raise DeviceError(f"the Ray cluster ({self.address}) was not joined: {error}") from None
        return bridge


class BridgeEnded(Exception):
    """No answer came, and none will."""


class _Bridge:
    """The child process: one call at a time."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._log = log
        self._socket, theirs = socket.socketpair()
        self._lines = self._socket.makefile("rb")
        with theirs:
            argv = [sys.executable, "-m", f"{__package__}.ray_bridge", str(theirs.fileno()), *words]
            self.process = _start(argv, log, theirs.fileno())

    def ask(self, call: str, given: Mapping[str, object], limit_s: float) -> Any:
        """Send a call and return the answer. Raises DeviceError, BridgeEnded."""
        self._socket.settimeout(limit_s)
        try:
            self._socket.sendall(msgspec.json.encode((call, given)) + b"\n")
            answer, refusal = msgspec.json.decode(self._lines.readline())
        except TimeoutError:
            raise BridgeEnded(f"no answer in {limit_s:.0f} s (see {self._log})") from None
        except (OSError, msgspec.DecodeError):
            raise BridgeEnded(f"its driver ended (see {self._log})") from None
        if refusal:
            raise DeviceError(refusal)
        return answer

    def end(self) -> None:
        """Close the line, which ends a bridge that is well, and kill one that is not."""
        self._lines.close()
        self._socket.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

"""A Ray cluster as a way to nodes: everything of Ray happens in a child process, ``ray_bridge.py``.

The bridge runs under the interpreter of the Ray node on this machine, so the daemon needs neither Ray nor the cluster's
Python. A bridge that hangs or ends is replaced; nodes and trials never depend on one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from gpusched.errors import DeviceError, InputError
from gpusched.executors.cluster.bootstrap import NodeOffer, node_command, node_environment
from gpusched.folder.files import private_folder
from gpusched.recipe.recipe import Recipe

JOIN_S = 120.0
"""Time for a bridge to import Ray, twice, and to join the cluster."""
CALL_S = 150.0
"""Time for a call: a node's first includes the start of an anchor."""
LEASE_S = 30.0
"""Time after which an anchor gives a node back whose process has left."""
CLOSE_S = 20.0
"""Time for a call that gives everything back: a person waits for the end."""
AGAIN_S = 15.0
"""Time between two tries to join a cluster that was lost."""
END_S = 5.0
"""Time for a bridge to leave the cluster."""
HOW_TO_GUARD = (
    "start it with RAY_AUTH_MODE=token on every node (see `ray get-auth-token --generate`)"
)
T = TypeVar("T")
_ADDRESS = re.compile(r"[^\s:/]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


class Wanted(msgspec.Struct, frozen=True):
    """Devices to reserve. ``kind``: GPU or CPU, or empty: GPUs, unless no node has one; ``most``: of each node."""

    kind: str = ""
    most: int | None = None
    max_nodes: int | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> Wanted:
        """Return what a recipe asks for. Raises InputError where it names single GPUs."""
        if not isinstance(recipe.devices, str) or recipe.devices.startswith("cuda:"):
            raise InputError(
                "devices: Ray chooses the GPUs of each node: write cuda for all that are free, cpu:N, or auto"
            )
        kind, _, most = recipe.devices.partition(":")
        kinds = {"cuda": "GPU", "cpu": "CPU"}
        return cls(kinds.get(kind, ""), int(most) if most else None, recipe.max_nodes)


class Reserved(msgspec.Struct):
    """An answer of the bridge. ``kept``: nodes that are still ours; one whose anchor is slow has no offer in it."""

    offers: list[NodeOffer]
    kept: list[str]


class RayBootstrap:
    """Nodes of the Ray cluster at ``address``: ``HOST:PORT`` of its GCS, or ``auto`` for the one of this machine.

    ``insecure``: accept a cluster without a token. ``python``: the interpreter that speaks with Ray. Raises InputError,
    or DeviceError where the cluster cannot be used.
    """

    def __init__(
        self,
        address: str,
        shared: Path,
        *,
        insecure: bool = False,
        wanted: Wanted | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.address, self.python = find_cluster(address)
        self._shared = shared.resolve()
        whole = f"{os.getuid()} {self._shared}"
        #: Namespace, the same at a resume.
        self._experiment = "gpusched-" + hashlib.sha256(whole.encode()).hexdigest()[:12]
        self._given = {
            **msgspec.to_builtins(wanted or Wanted()),
            "lease_s": lease_s,
            "command": node_command(self._shared, "", "")[:-2],
            "env": node_environment(),
        }
        #: False: whoever reaches the cluster can run code on every node.
        self.has_token = False
        self._offers: list[NodeOffer] = []
        self._join_at = 0.0
        self._bridge: _Bridge | None = self._join(JOIN_S)
        if not self.has_token and not insecure:
            self.leave()
            raise DeviceError(
                f"the Ray cluster at {self.address} has no token: whoever reaches it can run code on every node; "
                f"{HOW_TO_GUARD}, or accept it with --insecure-cluster"
            )

    def nodes(self) -> list[NodeOffer]:
        """See ``Bootstrap``; the nodes as before while Ray is silent, which says nothing about them.

        Raises DeviceError where none ever was.
        """
        if self._offers and self._bridge is None and time.monotonic() < self._join_at:
            return self._offers
        try:
            now = self._call("reserve", self._given, Reserved)
            late = {offer.name for offer in self._offers if offer.name in now.kept}
            late -= {offer.name for offer in now.offers}
            self._offers = [*now.offers, *(o for o in self._offers if o.name in late)]
        except DeviceError:
            if not self._offers:
                raise
        return self._offers

    def interrupt(self) -> None:
        if (bridge := self._bridge) is not None:
            bridge.interrupt()

    def close(self) -> None:
        with contextlib.suppress(DeviceError):
            self._call("close", {}, type(None), CLOSE_S)
        self.leave()

    def leave(self) -> None:
        """End the bridge; the nodes stay reserved, for a resume."""
        if self._bridge is not None:
            self._bridge.end()
            self._bridge = None

    def _call(
        self, call: str, given: Mapping[str, object], form: type[T], limit_s: float = CALL_S
    ) -> T:
        """Have the bridge answer a call, a new one where the last has ended. Raises DeviceError."""
        try:
            self._bridge = self._bridge or self._join(min(limit_s, JOIN_S))
            answer = self._bridge.ask({"call": call, "given": given}, limit_s)
        except BridgeEnded as error:
            self.leave()
            self._join_at = time.monotonic() + AGAIN_S
            raise DeviceError(f"the Ray cluster at {self.address} is silent: {error}") from None
        if "error" in answer:
            raise DeviceError(f"the Ray cluster at {self.address}: {answer['error']}")
        return msgspec.convert(answer["result"], form)

    def _join(self, limit_s: float) -> _Bridge:
        log = private_folder(self._shared / "cluster") / "ray.log"
        words = [self.address, self._experiment, str(self._shared)]
        bridge = _Bridge(self.python, words, log)
        try:
            answer = bridge.ask(None, limit_s)
        except BridgeEnded as error:
            answer = {"error": f"the Ray cluster at {self.address} was not joined: {error}"}
        if "error" in answer:
            bridge.end()
            raise DeviceError(answer["error"])
        self.has_token = answer["result"]
        return bridge


class BridgeEnded(Exception):
    """No answer came, and none will."""


class _Bridge:
    """The child process: one call at a time."""

    def __init__(self, python: str, words: Sequence[str], log: Path) -> None:
        self._log = log
        self._socket, theirs = socket.socketpair()
        self._lines = self._socket.makefile("rb")
        #: Ray reads this when it is imported; the bridge first tries the cluster without a token.
        environ = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        with theirs, log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).with_name("ray_bridge.py")), *words],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
                env=environ,
                cwd="/",
                start_new_session=True,
            )

    def ask(self, call: Mapping[str, object] | None, limit_s: float) -> dict[str, Any]:
        """Send a call and wait for the answer; None: wait for the greeting."""
        self._socket.settimeout(limit_s)
        try:
            if call is not None:
                self._socket.sendall(msgspec.json.encode(call) + b"\n")
            line = self._lines.readline()
        except TimeoutError:
            raise BridgeEnded(f"no answer in {limit_s:.0f} s (see {self._log})") from None
        except OSError:
            line = b""
        if not line:
            raise BridgeEnded(f"its driver ended (see {self._log})")
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer

    def interrupt(self) -> None:
        """Have the call under way fail; called from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close the line, which ends a bridge that is well, and kill one that is not."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def find_cluster(address: str) -> tuple[str, str]:
    """Return the GCS's ``HOST:PORT`` and the interpreter of its node on this machine; this one where none is seen.

    ``auto``: RAY_ADDRESS, which Ray sets for jobs, else the only cluster with a node here. Raises InputError.
    """
    here = ray_nodes_here()
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or "auto"
    if address == "auto":
        if not here:
            raise InputError(
                "cluster: auto: no node of a Ray cluster runs on this machine; start one with `ray start --head`, or "
                "let this machine join with `ray start --address=HOST:PORT` (pip install 'gpusched[ray]')"
            )
        if len(here) > 1:
            raise InputError(
                f"cluster: auto: nodes of {len(here)} Ray clusters run on this machine; name the one to use: "
                + ", ".join(sorted(here))
            )
        (address,) = here
    if address.startswith("ray://"):
        raise InputError(
            f"cluster: {address}: Ray Client cannot reserve nodes for a search; run gpusched on a node of the cluster "
            f"with --cluster auto (from elsewhere: `ray job submit -- gpusched run RECIPE --cluster auto`)"
        )
    if not _ADDRESS.fullmatch(address):
        raise InputError(
            f"cluster: {address!r} is not an address of a Ray cluster: HOST:PORT, or auto"
        )
    host, _, port = address.rpartition(":")
    for known, python in here.items():
        same_host = known.rpartition(":")[0] == host or host in ("localhost", "127.0.0.1")
        if same_host and known.rpartition(":")[2] == port:
            return known, python
    return address, sys.executable


def ray_nodes_here() -> dict[str, str]:
    """Find the raylets of this machine: the address of each one's cluster, and the interpreter of its workers.

    That interpreter is run, so only raylets of this user and of root count: any user can call a process raylet.
    """
    found = {}
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        if not words or Path(words[0]).name != "raylet":
            continue
        if uids is None or not {*uids} <= {0, os.getuid()}:
            continue
        given = dict(word[2:].split("=", 1) for word in words if word[:2] == "--" and "=" in word)
        workers = shlex.split(given.get("python_worker_command", ""))
        if workers and given.get("gcs-address"):
            found[given["gcs-address"]] = workers[0]
    return found

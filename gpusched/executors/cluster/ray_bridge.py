"""A driver of Ray that speaks for ``bootstrap.py``, in a process of its own: calls come and answers go by a socket.

On every node an *anchor*, a detached actor in a detached placement group, reserves the node's GPUs (its CPUs where no
node has a GPU), and has the node's process run, which does not die with Ray. A later bridge finds the anchors by their
names. Anchors travel by value, so they need the standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    import ray
    import ray.util
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    missing = str(error)

ANSWER_S = 5.0
"""Time for a GCS to answer at all."""
RESERVE_S = 6.0
"""Time for a placement group to be placed: Ray sees late what a job gave back. Longer: another job has the devices."""
TRY_S = 0.5
"""The same for fewer devices than all."""
ANCHOR_S = 60.0
"""Time for an anchor to start or answer: a cold import of Ray from a shared folder takes tens of seconds."""
TURN_S = 1.0
"""Time between two looks of an anchor at its raylet and its node's process."""
RAYS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Variables that Ray sets for its workers, beside RAY_*."""
DETACH = "import os, sys\nif not os.fork(): os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"
KEEP = 'while :; do "$@"; [ $? -eq 0 ] && exit; sleep 1; done'
"""Runs a node's process, and again until it has left."""
Json = dict[str, Any]


class RayRefused(Exception):
    """One sentence for the user: why this cluster cannot be used."""


# ---------------------------------------------------------------- on a node


class Anchor:
    """An experiment's share of one node, and the process of the node in it.

    The share is given back when the process has left: the search is over, or nobody came back to it. The process is
    known by a lock that it inherits, which outlives an anchor that Ray starts anew.
    """

    def __init__(self, about: Json) -> None:
        self._about = about
        self._raylet = os.getppid()
        self._path = Path(tempfile.gettempdir()) / f"{about['name']}-{os.getuid()}.lock"
        self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._lock).st_uid != os.getuid():
            raise PermissionError(f"{self._path} belongs to another user")
        self.start()
        threading.Thread(target=self._keep, daemon=True).start()

    def start(self) -> str:
        """See to it that the node's process runs; return the reserved devices, as a recipe names them.

        Ray numbers GPUs as NVML does, whatever CUDA_VISIBLE_DEVICES its raylet has.
        """
        devices = f"cpu:{self._about['cpus']}"
        if gpus := ray.get_runtime_context().get_accelerator_ids().get("GPU"):
            devices = "cuda:" + ",".join(sorted(gpus, key=lambda gpu: (len(gpu), gpu)))
        if not self._is_running():
            self._spawn([*self._about["command"], self._about["node"], devices])
        return devices

    def _spawn(self, argv: list[str]) -> None:
        """Start a process outside Ray's tree, without Ray's variables."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k not in RAYS}
        out = os.open(self._about["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with self._path.open("rb") as lock, os.fdopen(out, "ab"):
            fcntl.flock(lock, fcntl.LOCK_SH)
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", DETACH, "sh", "-c", KEEP, "sh", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**own, **self._about["env"]},
                cwd="/",
                pass_fds=[lock.fileno()],
                check=True,
                timeout=ANCHOR_S,
            )

    def _is_running(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def _keep(self) -> None:
        """Give the share back when the process has left, and end with the raylet."""
        while self._is_running():
            time.sleep(TURN_S)
            if os.getppid() != self._raylet:
                os._exit(1)
        ray.util.remove_placement_group(ray.util.get_current_placement_group())


# ---------------------------------------------------------------- the driver


class Bridge:
    """The nodes of one experiment, as Ray sees them."""

    def __init__(self, experiment: str, folder: str) -> None:
        self._experiment, self._folder = experiment, Path(folder)
        #: Node id -> name, kept for a node that is gone.
        self._names: dict[str, str] = {}
        #: Node id -> offer of a node whose anchor has answered.
        self._offers: dict[str, Json] = {}
        for group in self._groups():
            _, name, node = group["name"].split("/")
            self._names[node] = name

    def reserve(self, **wanted: Any) -> Json:
        """Reserve devices of new nodes, start their processes, and return the ``offers`` of all.

        ``kept``: names of the nodes that are alive and reserved, also where an anchor has not answered. ``wanted``: as
        ``Wanted``, the command of a node's process, and its variables. Raises RayRefused where no node is
        free.
        """
        alive = {row["NodeID"]: row for row in ray.nodes() if row["Alive"]}
        for group in self._groups():
            node = group["name"].rpartition("/")[2]
            if node not in alive:
                self._offers.pop(node, None)
                self._remove(group["name"])
        has_gpus = any(row["Resources"].get("GPU") for row in alive.values())
        kind = wanted["kind"] or ("GPU" if has_gpus else "CPU")
        new = [
            row
            for node, row in sorted(alive.items())
            if node not in self._offers and row["Resources"].get(kind, 0) >= 1
        ]
        if wanted["max_nodes"] is not None:
            # A resume takes the same nodes.
            new.sort(key=lambda row: row["NodeID"] not in self._names)
            new = new[: max(0, wanted["max_nodes"] - len(self._offers))]
        for row in new:
            self._name(row, alive)
        waiting = {}
        with ThreadPoolExecutor(16) as side_by_side:
            tries = [(row, side_by_side.submit(self._reserve, row, kind, wanted)) for row in new]
        for row, tried in tries:
            try:
                self._offers[row["NodeID"]] = tried.result()
            except Exception as error:
                waiting[self._names[row["NodeID"]]] = one_line(error)
        reserved = {group["name"].rpartition("/")[2] for group in self._groups()}
        kept = [self._names[node] for node in alive.keys() & reserved]
        if waiting and not kept:
            reasons = "; ".join(f"{name}: {why}" for name, why in sorted(waiting.items()))
            raise RayRefused(f"no node is free: {reasons}")
        return {"offers": list(self._offers.values()), "kept": kept}

    def _name(self, row: Json, alive: dict[str, Json]) -> None:
        """Name a node after its host; nodes that share a host take a part of their ids."""
        hosts = [other["NodeManagerHostname"].split(".")[0] for other in alive.values()]
        host = row["NodeManagerHostname"].split(".")[0]
        name = host if hosts.count(host) == 1 else f"{host}-{row['NodeID'][:6]}"
        self._names.setdefault(row["NodeID"], name)

    def _reserve(self, row: Json, kind: str, wanted: Json) -> Json:
        name, total = self._names[row["NodeID"]], int(row["Resources"][kind])
        group, count = self._group(row["NodeID"], kind, min(total, wanted["most"] or total))
        about = {"command": wanted["command"], "env": wanted["env"]}
        about.update(name=f"{self._experiment}-{name}", node=name, cpus=count)
        about["log"] = str(self._folder / "cluster" / f"{name}.log")
        anchor = (
            ray.remote(Anchor)
            .options(
                name=self._group_name(row["NodeID"]),
                namespace=self._experiment,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                max_task_retries=1,
                num_cpus=count if kind == "CPU" else 0,
                num_gpus=count if kind == "GPU" else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            )
            .remote(about)
        )
        devices = ray.get(anchor.start.remote(), timeout=ANCHOR_S)
        return {"name": name, "devices": devices}

    def _group(self, node: str, kind: str, most: int) -> tuple[Any, int]:
        """Return the placement group on a node and its size: up to ``most`` that no other job has, if it is new."""
        name = self._group_name(node)
        for known in self._groups():
            if known["name"] == name:
                return ray.util.get_placement_group(name), int(known["bundles"][0][kind])
        there, limit_s = [{"ray.io/node-id": node}], RESERVE_S
        size = min(most, int(ray.available_resources().get(kind, 0)))
        while size:
            group = ray.util.placement_group(
                [{kind: size}], name=name, lifetime="detached", bundle_label_selector=there
            )
            if group.wait(limit_s):
                return group, size
            ray.util.remove_placement_group(group)
            size, limit_s = size - max(1, size // 8), TRY_S
        raise RayRefused(f"other jobs of the Ray cluster have its {kind}s")

    def _group_name(self, node: str) -> str:
        return f"{self._experiment}/{self._names[node]}/{node}"

    def _groups(self) -> list[Json]:
        return [
            group
            for group in ray.util.placement_group_table().values()
            if group["name"].startswith(self._experiment + "/") and group["state"] != "REMOVED"
        ]

    def _remove(self, group: str) -> None:
        with contextlib.suppress(ValueError):  # no actor of this name
            ray.util.remove_placement_group(ray.util.get_placement_group(group))

    def close(self) -> None:
        """Remove all groups of the experiment, and their anchors with them, whichever bridge made them."""
        self._offers.clear()
        until_s = time.monotonic() + RESERVE_S
        while (groups := self._groups()) and time.monotonic() < until_s:
            for group in groups:
                self._remove(group["name"])
            time.sleep(0.05)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def connect(address: str, experiment: str) -> tuple[str, str]:
    """Join the cluster as a driver; return its address and this machine's. Raises RayRefused where that cannot be."""
    if "ray" not in globals():
        raise RayRefused(
            f"{sys.executable} cannot import Ray ({missing}): pip install 'gpusched[ray]' with the cluster's version"
        )
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        except (OSError, ValueError) as error:
            raise RayRefused(
                f"nothing answers there ({error}): is the Ray cluster up (`ray status`)?"
            ) from None
    try:
        ray.init(address, namespace=experiment, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        ask = ""
        if os.environ.get("RAY_AUTH_MODE") == "token":
            ask = "; is the token here (~/.ray/auth_token, or RAY_AUTH_TOKEN) the cluster's?"
        raise RayRefused(f"Ray {ray.__version__}: {one_line(error)}{ask}") from None
    return str(ray.get_runtime_context().gcs_address), str(ray.util.get_node_ip_address())


def main(line: str, address: str, experiment: str, folder: str) -> None:
    """Answer calls, a line of JSON each: (name, arguments) with (result, refusal), until the other end is closed."""
    with socket.socket(fileno=int(line)) as ends, ends.makefile("rw") as calls:

        def tell(answer: object, refusal: str = "") -> None:
            print(json.dumps((answer, refusal)), file=calls, flush=True)

        try:
            tell(connect(address, experiment))
        except RayRefused as refusal:
            tell(None, str(refusal))
            return
        bridge = Bridge(experiment, folder)
        for words in calls:
            call, given = json.loads(words)
            try:
                tell(getattr(bridge, call)(**given))
            except Exception as error:
                tell(None, one_line(error))


if __name__ == "__main__":
    main(*sys.argv[1:])

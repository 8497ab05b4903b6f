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
TRY_S = 1.0
"""The same for fewer devices than all. Ray counts whole seconds: of half a second it makes none."""
ANCHOR_S = 60.0
"""Time for an anchor to start or answer: a cold import of Ray from a shared folder takes tens of seconds."""
TURN_S = 1.0
"""Time between two looks of an anchor at its raylet and its node's process."""
RAYS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Variables that Ray sets for its workers, beside RAY_*."""
DETACH = "import os, sys\nif not os.fork(): os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"
KEEP = """until "$@"; do sleep 1; [ -d "${0%/*}" ] || exit; grep -qs '"over"' "$0" && exit; done"""
"""Runs a node's process, and again until it has left, or ``cluster.json`` (``$0``) says that the search is over."""
Json = dict[str, Any]


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
        try:
            out = os.open(self._about["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise OSError(f"{error}: all nodes must share --dir, as one user id") from None
        address = str(Path(self._about["log"]).with_name("cluster.json"))
        with self._path.open("rb") as lock, os.fdopen(out, "ab"):
            fcntl.flock(lock, fcntl.LOCK_SH)
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", DETACH, "sh", "-c", KEEP, address, *argv],
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
        me = ray.get_runtime_context().current_actor
        ray.util.remove_placement_group(ray.util.get_current_placement_group())
        ray.kill(me)


# ---------------------------------------------------------------- the driver


class Bridge:
    """The nodes of one experiment, as Ray sees them."""

    def __init__(self, experiment: str, folder: str) -> None:
        self._experiment, self._folder = experiment, Path(folder)
        self._offers: dict[str, Json] = {}  # by node id, of nodes whose anchors have answered

    def join(self, address: str) -> tuple[str, str]:
        """Join the cluster as a driver; return its address and this machine's. Raises RuntimeError."""
        if "ray" not in globals():
            raise RuntimeError(
                f"{sys.executable} cannot import Ray ({missing}): "
                f"pip install ray, of the cluster's version"
            )
        if address != "auto":
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
            except (OSError, ValueError) as error:
                raise RuntimeError(
                    f"nothing answers there ({error}): is the Ray cluster up (`ray status`)?"
                ) from None
        try:
            ray.init(
                address, namespace=self._experiment, log_to_driver=False, logging_level="ERROR"
            )
        except Exception as error:
            ask = "; is the token here (~/.ray/auth_token, or RAY_AUTH_TOKEN) the cluster's?"
            ask *= os.environ.get("RAY_AUTH_MODE") == "token"
            raise RuntimeError(f"Ray {ray.__version__}: {error}{ask}") from None
        return str(ray.get_runtime_context().gcs_address), str(ray.util.get_node_ip_address())

    def reserve(self, kind: str = "", max_nodes: int | None = None, **wanted: Any) -> Json:
        """Reserve devices of new nodes, start their processes, and return the ``offers`` of all.

        ``kept``: names of the nodes that are alive and reserved, also where an anchor has not answered. ``refused``:
        why a host is not used. ``wanted``: the rest of ``bootstrap.wanted``, and a node's command and variables.
        """
        alive = {row["NodeID"]: row for row in ray.nodes() if row["Alive"]}
        groups = self._groups()
        for node in groups.keys() - alive.keys():
            self._remove(groups.pop(node)["name"])
        # A node whose process has left has given its share back: it is taken anew.
        self._offers = {node: offer for node, offer in self._offers.items() if node in groups}
        if not kind:
            has_gpus = any(row["Resources"].get("GPU") for row in alive.values())
            kind = "GPU" if has_gpus else "CPU"
        new = [
            row
            for node, row in sorted(alive.items())
            if node not in self._offers and row["Resources"].get(kind, 0) >= 1
        ]
        new.sort(key=lambda row: row["NodeID"] not in groups)  # a resume takes the same nodes
        hosts = [host_of(row) for row in alive.values()]
        refused: dict[str, str] = {}
        most = (max_nodes or len(alive)) - len(self._offers)
        while new and most > 0:
            some, new = new[:most], new[most:]
            with ThreadPoolExecutor(16) as pool:
                calls = [pool.submit(self._reserve, row, kind, hosts, **wanted) for row in some]
            for row, call in zip(some, calls, strict=True):
                try:
                    self._offers[row["NodeID"]] = call.result()
                except Exception as error:
                    refused[host_of(row)] = str(error).strip().rpartition("\n")[2]
            groups = self._groups()
            most -= sum(row["NodeID"] in groups for row in some)
        kept = [name_in(groups[node]["name"]) for node in alive.keys() & groups.keys()]
        return {"offers": list(self._offers.values()), "kept": kept, "refused": refused}

    def _reserve(
        self, row: Json, kind: str, hosts: list[str], most: int | None = None, **about: Any
    ) -> Json:
        total = int(row["Resources"][kind])
        group, count = self._group(row, kind, hosts, min(total, most or total))
        about.update(node=(name := name_in(group)), cpus=count, name=f"{self._experiment}-{name}")
        about["log"] = str(self._folder / "cluster" / f"{name}.log")
        there = PlacementGroupSchedulingStrategy(ray.util.get_placement_group(group), 0)
        anchor = (
            ray.remote(Anchor)
            .options(
                name=group,
                namespace=self._experiment,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                max_task_retries=1,
                num_cpus=count if kind == "CPU" else 0,
                num_gpus=count if kind == "GPU" else 0,
                scheduling_strategy=there,
            )
            .remote(about)
        )
        return {"name": name, "devices": ray.get(anchor.start.remote(), timeout=ANCHOR_S)}

    def _group(self, row: Json, kind: str, hosts: list[str], most: int) -> tuple[str, int]:
        """Return name and size of the placement group on a node: up to ``most`` that no other job has, if it is new.

        A node is named after its host; nodes that share a host take a part of their ids.
        """
        node, host = row["NodeID"], host_of(row)
        if known := self._groups().get(node):
            return known["name"], int(known["bundles"][0][kind])
        name = host if hosts.count(host) == 1 else f"{host}-{node[:6]}"
        name = f"{self._experiment}/{name}/{node}"
        there, limit_s = [{"ray.io/node-id": node}], RESERVE_S
        size = min(most, int(ray.available_resources().get(kind, 0)))
        while size:
            group = ray.util.placement_group(
                [{kind: size}], name=name, lifetime="detached", bundle_label_selector=there
            )
            if group.wait(limit_s):
                return name, size
            ray.util.remove_placement_group(group)
            size, limit_s = size - max(1, size // 8), TRY_S
        raise RuntimeError(f"other jobs of the Ray cluster have its {kind}s")

    def _groups(self) -> dict[str, Json]:
        """Return Ray's rows of this experiment's placement groups, by node id."""
        return {
            row["name"].rpartition("/")[2]: row
            for row in ray.util.placement_group_table().values()
            if row["name"].startswith(self._experiment + "/") and row["state"] != "REMOVED"
        }

    def _remove(self, group: str) -> None:
        """Remove a placement group and its anchor, which Ray would try to start again for ever without the group."""
        with contextlib.suppress(ValueError):  # no actor of this name
            ray.kill(ray.get_actor(group))
        with contextlib.suppress(ValueError):
            ray.util.remove_placement_group(ray.util.get_placement_group(group))

    def close(self) -> None:
        """Remove all groups of the experiment, and their anchors with them, whichever bridge made them."""
        self._offers.clear()
        until_s = time.monotonic() + RESERVE_S
        while (groups := self._groups()) and time.monotonic() < until_s:
            for group in groups.values():
                self._remove(group["name"])
            time.sleep(0.05)


def host_of(row: Json) -> str:
    host: str = row["NodeManagerHostname"]
    return host.split(".")[0]


def name_in(group: str) -> str:
    """Return the node's name in that of its placement group, experiment/name/node id."""
    return group.split("/")[1]


def main(line: str, experiment: str, folder: str) -> None:
    """Answer calls, a line of JSON each: (name, arguments) with (result, refusal), until the other end is closed."""
    bridge = Bridge(experiment, folder)
    with socket.socket(fileno=int(line)) as ends, ends.makefile("rw") as calls:
        for words in calls:
            call, given = json.loads(words)
            try:
                answer = getattr(bridge, call)(**given), ""
            except Exception as error:
                answer = None, " ".join(str(error).split()) or type(error).__name__
            print(json.dumps(answer), file=calls, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

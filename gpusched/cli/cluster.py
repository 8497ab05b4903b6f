"""Nodes of a cluster: ``node``, by which a machine joins a search by hand, and the checks of ``doctor --cluster``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

import gpusched
from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.doctor.gpus import Check, fail, ok, warn
from gpusched.errors import InputError
from gpusched.executors.cluster.ray import HOW_TO_GUARD, NodeLook, RayBootstrap
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import count


class Left(Struct):
    """The node has left: the search is over, or no daemon was there for too long."""

    node: str
    over: bool


@common.command(
    argument(
        "--join EXP", "folder of the experiment, under its path on all machines", required=True
    ),
    argument("--name NAME", "name of this node (default: the host's)"),
    argument("--devices X", "auto, cpu:N, cuda, cuda:0,2, or GPU UUIDs", default="auto"),
    prints=[Left],
)
def node(args: argparse.Namespace) -> int:
    """Have this machine take part in a running search, until the search is over or Ctrl-C.

    The search was started with `gpusched run RECIPE --cluster local:1@HOST`, where HOST is an address of that machine
    that this one reaches. Both see the experiment's folder under the same path, and have the same Python environment.
    Trials that run here when this command is ended go on elsewhere from their newest checkpoints.
    """
    from gpusched.executors.cluster.line import Keys
    from gpusched.executors.cluster.node import NodeProcess

    shared = Path(args.join).resolve()
    if not Keys(shared).address.exists():
        known = ExperimentPaths(shared).resolved.exists()
        why = "this search does not run on a cluster" if known else "no experiment is there"
        raise InputError(
            f"{shared}: {why}; name the folder of a search that was started with --cluster"
        )
    name = args.name or socket.gethostname().partition(".")[0]
    if "/" in name or name.startswith("."):
        raise InputError(f"--name {name}: a name without / and without a dot at its beginning")
    common.note(f"node {name} joins {shared.name}")
    joined = NodeProcess(shared, name, args.devices)
    joined.run()
    over = "the search is over" if joined.is_over else "no daemon was there for too long"
    return common.tell(args, Left(name, joined.is_over), f"node {name} has left: {over}")


# ---------------------------------------------------------------- a Ray cluster looked over

SKEW_S = 2.0
"""Clocks further apart put log lines of several nodes out of order."""
LOOK = """
import sys, gpusched
print(gpusched.__version__, end=" ")
from gpusched.executors.cluster.line import interface_of
print(interface_of(sys.argv[1]))
"""
HEAD = ("node", "address", "interface", "devices", "Ray", "Python", "gpusched", "shared", "clock")


def look_at_cluster(address: str, folder: Path) -> tuple[bool, Sequence[NodeLook]]:
    """Return whether the cluster has a token, and what its nodes see; ``folder``: the one that they should share.

    Raises InputError and DeviceError.
    """
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as probe:
        bootstrap = RayBootstrap(address, Path(probe), insecure=True)
        try:
            paths = os.environ.get("PYTHONPATH", "")
            looks = bootstrap.look(["env", f"PYTHONPATH={paths}", sys.executable, "-c", LOOK])
        finally:
            bootstrap.leave()
    return bootstrap.has_token, sorted(looks, key=lambda look: look.name)


def row(look: NodeLook) -> tuple[str, ...]:
    """Return a node's cells under ``HEAD``."""
    models = sorted({gpu["name"] for gpu in look.gpus})
    return (
        look.name,
        look.address,
        look.interface or "-",
        f"{look.ray_gpus} x {', '.join(models) or 'GPU'}"
        if look.ray_gpus
        else count(look.cpus, "CPU"),
        look.ray or "-",
        look.python or "-",
        look.gpusched or "-",
        "no" if look.shared else "yes" if look.ray else "-",
        f"{look.skew_s:+.2f} s" if look.ray else "-",
    )


def nodes_table(looks: Sequence[NodeLook]) -> str:
    return common.table(HEAD, map(row, looks))


def cluster_checks(has_token: bool, looks: Sequence[NodeLook]) -> Iterator[Check]:
    """Judge the cluster: the token, then each node."""
    if has_token:
        yield ok("token", "the cluster asks for one")
    else:
        why = "none: whoever reaches the cluster can run code on every node"
        yield fail("token", why, f"{HOW_TO_GUARD}, or accept it with --insecure-cluster")
    has_gpus = any(look.ray_gpus for look in looks)
    for look in looks:
        cells = zip(HEAD[1:], row(look)[1:], strict=True)
        told = ", ".join(f"{name} {cell}" for name, cell in cells)
        yield from list(_node_checks(look, has_gpus)) or [ok(look.name, told)]


def _node_checks(look: NodeLook, has_gpus: bool) -> Iterator[Check]:
    """Judge one node; ``has_gpus``: some node of the cluster has GPUs."""
    name, here = look.name, gpusched.__version__
    if not look.ray:
        yield fail(name, f"the node did not answer: {look.trouble}", "see `ray status`")
        return
    if not look.gpusched:
        why = f"{sys.executable} does not run gpusched there: {look.trouble}"
        path = "install gpusched under the same path on every node"
        yield fail(name, why, f"{path}, or keep its environment in the shared folder")
    elif look.gpusched != here:
        why = f"gpusched {look.gpusched} is installed there, {here} here"
        yield fail(name, why, "install the same version on every node")
    if look.shared:
        why = f"the folder of experiments is not shared with this node: {look.shared.rsplit(': ', 1)[-1]}"
        path = "name a folder that every node mounts under the same path"
        yield fail(name, why, f"{path}: --dir, or GPUSCHED_RUNS")
    if has_gpus and not look.ray_gpus:
        why = "this node has no GPU, other nodes have: a search leaves it out"
        yield warn(name, why, "")
    if len(look.gpus) < look.ray_gpus:
        why = f"Ray counts {count(look.ray_gpus, 'GPU')} there, the driver {len(look.gpus)}"
        yield fail(name, why, "see `nvidia-smi` there, or give `ray start` the right --num-gpus")
    if not look.interface:
        why = f"no network interface there has the address {look.address}, by which Ray knows it"
        address = "give `ray start` the right --node-ip-address"
        yield warn(name, why, f"{address}; through NAT a node cannot be used")
    if abs(look.skew_s) > SKEW_S:
        clock = f"the clock is {abs(look.skew_s):.1f} s {'ahead' if look.skew_s > 0 else 'behind'}"
        why = f"{clock}: a search does not mind, log lines of several nodes are out of order"
        yield warn(name, why, "let it synchronise with NTP")

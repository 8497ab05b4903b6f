"""The checks of ``doctor --cluster``: what the nodes of a Ray cluster say of themselves, judged."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gpusched
from gpusched.cli import common
from gpusched.doctor.gpus import Check, fail, ok, warn
from gpusched.executors.cluster.bootstrap import node_environment
from gpusched.executors.cluster.ray import HOW_TO_GUARD, NodeLook, RayBootstrap
from gpusched.text import count

LOOK = "import gpusched; print(gpusched.__version__)"
HEAD = ("node", "address", "devices", "Ray", "Python", "gpusched", "shared")


def look_at_cluster(address: str, folder: Path) -> tuple[bool, Sequence[NodeLook]]:
    """Return whether the cluster has a token, and what its nodes see; ``folder``: the one that they should share.

    Raises InputError and DeviceError.
    """
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as probe:
        bootstrap = RayBootstrap(address, Path(probe), insecure=True)
        try:
            given = [f"{name}={value}" for name, value in node_environment().items()]
            looks = bootstrap.look(["env", *given, sys.executable, "-c", LOOK])
        finally:
            bootstrap.leave()
    return bootstrap.has_token, sorted(looks, key=lambda look: look.name)


def row(look: NodeLook) -> tuple[str, ...]:
    """Return a node's cells under ``HEAD``."""
    models = sorted({gpu["name"] for gpu in look.gpus})
    return (
        look.name,
        look.address,
        f"{look.ray_gpus} x {', '.join(models) or 'GPU'}"
        if look.ray_gpus
        else count(look.cpus, "CPU"),
        look.ray or "-",
        look.python or "-",
        look.gpusched or "-",
        "no" if look.shared else "yes" if look.ray else "-",
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

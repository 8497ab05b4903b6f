"""A Ray cluster looked over, for ``doctor --cluster``: a table of the nodes, and what to do about each finding."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gpusched
from gpusched.cli import common
from gpusched.doctor.gpus import Check
from gpusched.executors.cluster.ray import HOW_TO_GUARD, NodeLook, RayBootstrap
from gpusched.text import count

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
    """Judge what the nodes of a cluster said of themselves."""
    if has_token:
        yield Check("token", "ok", "the cluster asks for one")
    else:
        yield Check(
            "token",
            "fail",
            "none: whoever reaches the cluster can run code on every node",
            f"{HOW_TO_GUARD}, or accept it with --insecure-cluster",
        )
    has_gpus = any(look.ray_gpus for look in looks)
    for look in looks:
        findings = list(node_checks(look, has_gpus))
        told = ", ".join(
            f"{name} {cell}" for name, cell in zip(HEAD[1:], row(look)[1:], strict=True)
        )
        yield from findings or [Check(look.name, "ok", told)]


def node_checks(look: NodeLook, has_gpus: bool) -> Iterator[Check]:
    """Judge one node; ``has_gpus``: some node of the cluster has GPUs."""
    if not look.ray:
        yield Check(look.name, "fail", f"it did not answer: {look.trouble}", "see `ray status`")
        return
    if not look.gpusched:
        yield Check(
            look.name,
            "fail",
            f"{sys.executable} does not run gpusched there: {look.trouble}",
            "install gpusched under the same path on every node, or keep its environment in the shared folder",
        )
    elif look.gpusched != gpusched.__version__:
        yield Check(
            look.name,
            "fail",
            f"gpusched {look.gpusched} is installed there, {gpusched.__version__} here",
            "install the same version on every node",
        )
    if look.shared:
        yield Check(
            look.name,
            "fail",
            f"the folder of experiments is not shared with it: {look.shared.rsplit(': ', 1)[-1]}",
            "name a folder that every node mounts under the same path: --dir, or GPUSCHED_RUNS",
        )
    if has_gpus and not look.ray_gpus:
        yield Check(look.name, "warn", "it has no GPU, other nodes have: a search leaves it out")
    if len(look.gpus) < look.ray_gpus:
        yield Check(
            look.name,
            "fail",
            f"Ray counts {count(look.ray_gpus, 'GPU')} there, the driver {len(look.gpus)}",
            "see `nvidia-smi` there, or give `ray start` the right --num-gpus",
        )
    if not look.interface:
        yield Check(
            look.name,
            "warn",
            f"no network interface there has the address {look.address}, by which Ray knows it",
            "give `ray start` the right --node-ip-address; through NAT a node cannot be used",
        )
    if abs(look.skew_s) > SKEW_S:
        yield Check(
            look.name,
            "warn",
            f"its clock is {abs(look.skew_s):.1f} s {'ahead' if look.skew_s > 0 else 'behind'}: a search does not "
            f"mind, log lines of several nodes are out of order",
            "let it synchronise with NTP",
        )

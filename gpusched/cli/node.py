"""A machine that joins a search by hand: ``node``."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from msgspec import Struct

from gpusched.cli import common
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths


class Left(Struct):
    """The node has left: the search is over, or no daemon was there for too long."""

    node: str
    over: bool


def _prepare(parser: argparse.ArgumentParser) -> None:
    common.add(
        parser,
        "--join EXP",
        "folder of the experiment, under its path on all machines",
        required=True,
    )
    common.add(parser, "--name NAME", "name of this node (default: the host's)")
    common.add(parser, "--devices X", "auto, cpu:N, cuda, cuda:0,2, or GPU UUIDs", default="auto")


@common.command(_prepare, prints=[Left])
def node(args: argparse.Namespace) -> int:
    """Have this machine take part in a running search, until the search is over or Ctrl-C.

    The search was started with `gpusched run RECIPE --cluster local:1@HOST`, where HOST is an address of that machine
    that this one reaches. Both see the experiment's folder under the same path, and have the same Python environment.
    Trials that run here when this command is ended go on elsewhere from their newest checkpoints.
    """
    from gpusched.executors.cluster.line import Keys
    from gpusched.executors.cluster.node import Node

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
    joined = Node(shared, name, args.devices)
    joined.run()
    over = "the search is over" if joined.is_over else "no daemon was there for too long"
    return common.tell(args, Left(name, joined.is_over), f"node {name} has left: {over}")

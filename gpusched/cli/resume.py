"""Go on with an experiment that was interrupted, or that is over.

Interrupted: its daemon was killed, crashed, or was lost with the machine. The journal is replayed, trials that still
run are adopted, the dead are relaunched from their last checkpoint. The deadline stays where it was, unless --deadline
moves it.

Over: it was stopped, or met its deadline, its target or its limit of trials. With another limit it goes on: trials that
only the end had stopped train on from their last checkpoints; the time since the end does not count. A search that was
stopped before its deadline needs no other limit.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from gpusched.cli import attach, common, deadline
from gpusched.daemon import start as launchpad
from gpusched.errors import InputError


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument(
        "--deadline", metavar="WHEN", help="+30m (more), 45m (from now on) or 18:30 (today)"
    )
    parser.add_argument("--target", metavar="X", help="metric that is good enough; none: no target")
    parser.add_argument("--max-trials", metavar="N", help="most trials in all; none: any number")
    common.add_detach(parser)
    parser.add_argument(
        "--salvage",
        action="store_true",
        help="go on from what can be read of a damaged journal, and from the trials' own files",
    )
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    pid = launchpad.start_daemon(
        paths,
        resume=True,
        salvage=args.salvage,
        wish=wish(args),
        say=lambda line: common.note(f"note: {line}"),
    )
    return attach.begin(args, paths, pid, "goes on")


def wish(args: argparse.Namespace) -> dict[str, Any]:
    """Read the limits that the experiment is to go on with. Raises InputError."""
    wished: dict[str, Any] = {} if args.deadline is None else dict(deadline.read(args.deadline))
    if args.target is not None:
        wished["target"] = _number(args.target, "--target", "a number", float)
    if args.max_trials is not None:
        wished["max_trials"] = _number(args.max_trials, "--max-trials", "a whole number", int)
    return wished


def _number(text: str, option: str, kind: str, read: type[float] | type[int]) -> float | None:
    if text == "none":
        return None
    try:
        number = read(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (read is int and number < 1):
        raise InputError(f"{option} {text}: give {kind}, or none for no limit") from None
    return number

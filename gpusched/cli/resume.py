"""Go on with an experiment that was interrupted: its daemon was killed, crashed, or was lost with the machine.

The journal is replayed, trials that still run are adopted, the dead are relaunched from their last checkpoint. The
deadline stays where it was, unless --deadline moves it.
"""

from __future__ import annotations

import argparse

from gpusched.cli import attach, common, deadline
from gpusched.daemon import start as launchpad


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument(
        "--deadline",
        metavar="WHEN",
        help="move the deadline: +30m (more), 45m (from now on) or 18:30",
    )
    common.add_detach(parser)
    parser.add_argument(
        "--salvage",
        action="store_true",
        help="go on from what can be read of a damaged journal, and from the trials' own files",
    )
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    moved = None if args.deadline is None else deadline.read(args.deadline)
    pid = launchpad.start_daemon(paths, resume=True, salvage=args.salvage, deadline=moved)
    return attach.begin(args, paths, pid, "goes on")

"""Go on with an experiment whose daemon is gone: killed, crashed, or lost with the machine.

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
        "--deadline", metavar="WHEN", help="move it: +30m (more), 45m (from now on) or 18:30"
    )
    parser.add_argument("--detach", action="store_true", help="do not stay to watch")
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
    if args.detach:
        name = paths.root.name
        data = {"experiment": name, "folder": str(paths.root), "daemon_pid": pid}
        return common.tell(
            args, data, f"{name} goes on in the background; 'gpusched watch' shows it"
        )
    return attach.attach(paths, as_json=args.json, owns=True)

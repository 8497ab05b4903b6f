"""Show the live dashboard of an experiment; of a finished one, where it ended.

Ctrl-C or q detaches and ends nothing. Nothing can be changed from there unless --steer is given.
"""

from __future__ import annotations

import argparse

from gpusched.cli import attach, common
from gpusched.dashboard import live
from gpusched.folder import find


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument(
        "--steer",
        action="store_true",
        help="let keys change the search: pause and stop trials, move the deadline, stop it",
    )
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    if not find.has_daemon(paths) and (args.json or not live.is_possible()):
        return attach.conclude(paths, as_json=args.json)
    return attach.attach(paths, as_json=args.json, owns=False, steers=args.steer)

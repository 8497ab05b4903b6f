"""Why a trial is where it is: its story, its ranks, and what would make it move."""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.daemon import session


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trial", metavar="TRIAL", help="number of the trial")
    common.add_experiment(parser, option=True)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    number = session.trial_number(args.trial)
    answer = session.explanation(paths, number)
    if args.json:
        common.print_json(answer["data"])
    else:
        print("\n".join(answer["lines"]))
    return 0

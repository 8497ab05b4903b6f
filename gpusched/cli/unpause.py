"""Let a trial go on that was paused: it gets the next free atom."""

from __future__ import annotations

import argparse

from gpusched import session
from gpusched.cli import common


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trial", metavar="TRIAL", help="number of the trial")
    common.add_experiment(parser, option=True)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    number = session.trial_number(args.trial)
    answer = session.ask(paths, "unpause", trial=number)
    if args.json:
        common.print_json({"trial": number, "answer": answer})
    else:
        print(answer)
    return 0

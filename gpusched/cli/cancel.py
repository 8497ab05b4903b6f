"""End an experiment now: its trials are killed where they are. The best model saved so far stays on disk."""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.daemon import session


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    answer = session.ask(paths, "cancel")
    if not args.no_wait:
        common.wait_for_end(paths)
        answer = f"{paths.root.name} is cancelled"
    return common.tell(args, {"experiment": paths.root.name, "answer": answer}, answer)

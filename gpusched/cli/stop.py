"""Stop an experiment in good order: every trial leaves at its next step, the best model stays on disk.

With --trial only that trial is stopped, for good.
"""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.daemon import session


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument("--trial", metavar="TRIAL", help="stop this trial only")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    if args.trial is not None:
        answer = session.ask(paths, "stop_trial", trial=session.trial_number(args.trial))
    else:
        answer = session.ask(paths, "stop")
        if not args.no_wait:
            common.wait_for_end(paths)
            answer = f"{paths.root.name} has stopped"
    return common.tell(args, {"experiment": paths.root.name, "answer": answer}, answer)

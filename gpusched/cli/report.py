"""An HTML report of an experiment: learning curves, who had which device when, rungs, decisions, hyperparameters.

One file without outside resources, report.html in the experiment's folder unless --output says otherwise. Works while
the experiment runs, after it has ended, and on simulated ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.errors import InputError


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write it here")
    common.add_json(parser, "print the path and all that is drawn as one JSON object")


def run(args: argparse.Namespace) -> int:
    from gpusched.report import data, page

    paths = common.experiment(args)
    view = session.view(paths)
    found = data.read(paths.journal)
    target = args.output or paths.report
    try:
        page.write(target, view, found)
    except OSError as error:
        raise InputError(
            f"{target}: the report cannot be written there ({error.strerror}); -o FILE writes it elsewhere"
        ) from None
    if args.json:
        sign = 1.0 if view["mode"] == "max" else -1.0
        best = view["best"]
        common.print_json({"report": str(target), "best": best, **found.to_json(sign)})
    else:
        print(target)
    return 0

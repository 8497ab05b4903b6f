"""Write an HTML report of an experiment: learning curves, who had which device when, rungs, decisions, hyperparameters.

One file without outside resources, report.html in the experiment's folder unless --output says otherwise. Works while
the experiment runs, after it has ended, and on simulated ones.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.errors import InputError

if TYPE_CHECKING:
    from gpusched.journal.timeline import Timeline


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write the report to FILE",
    )
    common.add_json(parser, "print the path and all that is drawn as one JSON object")


def run(args: argparse.Namespace) -> int:
    from gpusched.journal import timeline
    from gpusched.report import page

    paths = common.experiment(args)
    view = session.view(paths)
    found = timeline.read(paths.journal)
    target = args.output or paths.report
    try:
        page.write(target, view, found)
    except OSError as error:
        raise InputError(
            f"{target}: the report cannot be written there ({error.strerror}); -o FILE writes it elsewhere"
        ) from None
    if args.json:
        drawn = _drawn(found, 1.0 if view["mode"] == "max" else -1.0)
        common.print_json({"report": str(target), "best": view["best"], **drawn})
    else:
        print(target)
    return 0


def _drawn(told: Timeline, sign: float) -> dict[str, Any]:
    from gpusched.report.page import importance

    trials = told.trials.values()
    return {
        "devices": list(told.devices),
        "until_s": told.until,
        "trials": [
            {
                "id": trial.id,
                "hparams": trial.hparams,
                "launches": trial.launches,
                "curve": trial.curve,
                "best": trial.best(sign),
            }
            for trial in trials
        ],
        "spans": [asdict(span) for span in told.spans],
        "importance": [asdict(found) for found in importance(trials, sign)],
    }

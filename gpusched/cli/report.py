"""The HTML page of an experiment, and of several side by side: ``report``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.files import read_json
from gpusched.folder.paths import ExperimentPaths

if TYPE_CHECKING:
    from gpusched.report.compare import Search


class Written(Struct):
    """A page that was written; beside the path stands all that is drawn."""

    report: str


_SEVERAL = "an experiment: a folder, a name, or 'last' (the default); several are compared"


@common.command(
    argument("--exp EXP", argparse.SUPPRESS),
    argument("exps", _SEVERAL, metavar="EXP", nargs="*"),
    common.DIR,
    argument("-o, --output FILE", "write the report to FILE", type=Path),
    prints=[Written],
)
def report(args: argparse.Namespace) -> int:
    """Write an HTML report of an experiment: curves, allocations, devices, rungs, hyperparameters; or compare several.

    One file with interactive plots and without outside resources: report.html in the experiment's folder, or for
    several experiments compare.html here, unless --output says otherwise. Works while an experiment runs, after it has
    ended, and on simulated ones.
    """
    from gpusched.report import compare, page

    named = [*([args.exp] if args.exp else []), *args.exps] or [None]
    runs = find.runs_folder(args.dir)
    folders = [find.find(name, runs) for name in named]
    searches = [_read(paths) for paths in folders]
    if len(searches) > 1:
        target, text = args.output or Path("compare.html"), compare.html(searches)
    else:
        target = args.output or folders[0].report
        text = page.html(searches[0].view, searches[0].told)
    try:
        page.write(target, text)
    except OSError as error:
        why = f"{target}: the report cannot be written there ({error.strerror})"
        raise InputError(f"{why}; -o FILE writes to another file") from None
    if not args.json:
        print(target)
        return 0
    drawn = _drawn(searches[0])
    if len(searches) > 1:
        found = [compare.standing(search) for search in searches]
        drawn = {"searches": found, "differences": compare.differences(searches)}
    common.print_json({"report": str(target), **drawn})
    return 0


def _read(paths: ExperimentPaths) -> Search:
    from gpusched.journal import timeline
    from gpusched.report.compare import Search

    recipe = read_json(paths.resolved, limit_bytes=-1) or {}  # a report needs none
    view = {**session.view(paths), "whatif": (read_json(paths.whatif) or {}).get("line")}
    return Search(view=view, told=timeline.read(paths.journal), recipe=recipe)


def _drawn(search: Search) -> dict[str, Any]:
    from gpusched.report.importance import importance

    told, sign = search.told, search.sign
    trials = told.trials.values()
    own = ("id", "hparams", "launches", "curve")
    return {
        "best": search.view["best"],
        "devices": list(told.devices),
        "until_s": told.until,
        "trials": [
            {**{name: getattr(trial, name) for name in own}, "best": trial.best(sign)}
            for trial in trials
        ],
        "spans": [asdict(span) for span in told.spans],
        "importance": [asdict(found) for found in importance(trials, sign)],
    }

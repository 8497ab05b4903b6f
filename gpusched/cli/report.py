"""The HTML page of an experiment, and of several side by side: ``report``."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths

if TYPE_CHECKING:
    from gpusched.report.compare import Search


class Written(Struct):
    """A page that was written; beside the path stands all that is drawn."""

    report: str


def _prepare(parser: argparse.ArgumentParser) -> None:
    add = common.add
    add(parser, "--exp EXP", argparse.SUPPRESS)
    several = "an experiment: a folder, a name, or 'last' (the default); several are compared"
    add(parser, "exps", several, metavar="EXP", nargs="*")
    common.add_dir(parser)
    add(parser, "-o, --output FILE", "write the report to FILE", type=Path)


@common.command(_prepare, prints=[Written])
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
        raise InputError(
            f"{target}: the report cannot be written there ({error.strerror}); -o FILE writes it elsewhere"
        ) from None
    if not args.json:
        print(target)
    elif len(searches) > 1:
        found = [compare.standing(search) for search in searches]
        differ = compare.differences(searches)
        common.print_json({"report": str(target), "searches": found, "differences": differ})
    else:
        common.print_json({"report": str(target), **_drawn(searches[0])})
    return 0


def _read(paths: ExperimentPaths) -> Search:
    from gpusched.journal import timeline
    from gpusched.report.compare import Search

    try:
        recipe = json.loads(paths.resolved.read_bytes())
    except (OSError, ValueError):
        recipe = {}  # a report needs none
    view = session.view(paths)
    with contextlib.suppress(OSError, ValueError, KeyError):
        view["whatif"] = json.loads(paths.whatif.read_bytes())["line"]
    return Search(view=view, told=timeline.read(paths.journal), recipe=recipe)


def _drawn(search: Search) -> dict[str, Any]:
    from gpusched.report.importance import importance

    told, sign = search.told, search.sign
    trials = told.trials.values()
    return {
        "best": search.view["best"],
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

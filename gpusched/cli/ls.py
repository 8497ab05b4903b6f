"""List the experiments in a folder, the latest last: state, metric, best so far."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpusched.cli import common
from gpusched.folder import find
from gpusched.folder.files import read_json
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import show_metric


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_dir(parser)
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    runs = find.runs_folder(args.dir)
    rows = [_row(paths) for paths in find.experiments(runs)]
    if args.json:
        for row in rows:
            common.print_json(row)
    elif not rows:
        print(f"{runs}/ has no experiments yet; 'gpusched run RECIPE' starts one")
    else:
        head = ("experiment", "state", "metric", "best", "folder")
        cells = [
            (r["experiment"], r["state"], r["metric"] or "-", show_metric(r["best"]), r["folder"])
            for r in rows
        ]
        print(common.table(head, cells, ("best",)))
    return 0


def _row(paths: ExperimentPaths) -> dict[str, Any]:
    """Describe an experiment from small files alone, so that a hundred are listed at once."""
    running = find.has_daemon(paths)
    best = _read(paths.best / "metric.json")
    state = "running" if running else _read(paths.final_view).get("state", "interrupted")
    metric = _read(paths.worker).get("metric")
    return {
        "experiment": paths.root.name,
        "state": state,
        "metric": metric,
        "best": best.get("value"),
        "folder": str(paths.root),
    }


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, limit_bytes=-1) or {}

"""Remove checkpoints that nothing needs any more.

Kept: the best model, and in an experiment that may go on, the newest checkpoint of every trial that is not final. Of a
finished experiment only ``best/`` stays. What is removed is renamed first, so that a crash leaves nothing half-deleted
under its old name.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from gpusched import session
from gpusched.cli import common
from gpusched.errors import InputError
from gpusched.paths import ExperimentPaths

FINAL = ("completed", "stopped", "failed")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    if session.has_daemon(paths):
        raise InputError(
            f"{paths.root.name} is running and looks after its checkpoints itself; clean up when it has ended"
        )
    victims = unneeded(paths, session.view(paths))
    size_bytes = sum(_size_bytes(folder) for folder in victims)
    if not args.dry_run:
        for folder in victims:
            _remove(folder)
    if args.json:
        common.print_json(
            {"removed": [str(v) for v in victims], "bytes": size_bytes, "dry_run": args.dry_run}
        )
    else:
        verb = "would remove" if args.dry_run else "removed"
        print(f"{verb} {len(victims)} checkpoints, {size_bytes / 2**20:.1f} MiB")
    return 0


def unneeded(paths: ExperimentPaths, view: dict[str, Any]) -> list[Path]:
    """Checkpoint folders that neither the best model nor a resume needs."""
    states = {trial["id"]: trial["state"] for trial in view["trials"]}
    found = []
    for number in session.trial_folders(paths):
        folder = paths.trial(number).checkpoints
        if not folder.is_dir():
            continue
        generations = sorted(p for p in folder.iterdir() if p.is_dir())
        is_final = view["state"] != "interrupted" or states.get(number) in FINAL
        committed = [p for p in generations if (p / "manifest.json").exists()]
        keep = set() if is_final else set(committed[-2:])
        found += [p for p in generations if p not in keep]
    return found


def _size_bytes(folder: Path) -> int:
    return sum(
        p.stat().st_size for p in folder.rglob("*") if p.is_file() and p.stat().st_nlink == 1
    )


def _remove(folder: Path) -> None:
    trash = folder.with_name(f".trash-{folder.name}")
    folder.rename(trash)
    shutil.rmtree(trash)

"""Start an experiment and watch it; at the deadline the best-trained model is on disk.

The search runs in a daemon of its own: closing the terminal ends nothing. Ctrl-C stops in good order and keeps the best
model; a second one terminates the trials; a third one kills them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpusched.cli import attach, common, validate
from gpusched.daemon import start as launchpad
from gpusched.driver.clock import Beginning
from gpusched.errors import GpuschedError
from gpusched.folder import find
from gpusched.folder.files import read_json


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_recipe(parser, "deadline", "devices", "policy", "seed")
    common.add_detach(parser)
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    began = Beginning.now()
    recipe = common.load_recipe(args)
    runs = find.runs_folder(args.dir)
    for line in validate.remarks(recipe):
        common.note(f"note: {line}")
    validate.ask_policy(recipe, runs)
    source = None if str(args.recipe) == "-" else args.recipe
    if source is not None and (told := may_go_on(runs, source)):
        common.note(f"note: {told}")
    paths = launchpad.make_experiment(runs, recipe, began, source)
    try:
        pid = launchpad.start_daemon(
            paths, recipe=recipe, say=lambda line: common.note(f"note: {line}")
        )
    except GpuschedError:
        if not paths.journal.exists() or not paths.socket.exists():
            launchpad.discard(paths)
        raise
    return attach.begin(args, paths, pid, "runs")


def may_go_on(runs: Path, source: Path) -> str:
    """Say that the latest search of this recipe can go on instead, and how; nothing where there is none."""
    for paths in reversed(find.experiments(runs)):
        if (read_json(paths.source) or {}).get("recipe") != str(source.absolute()):
            continue
        name, final = paths.root.name, read_json(paths.final_view, limit_bytes=-1)
        if find.has_daemon(paths):
            return f"{name} of this recipe is running; this starts another search beside it"
        if final is None:
            return (
                f"{name} of this recipe was interrupted; 'gpusched resume {name}' goes on with it"
            )
        return (
            f"{name} of this recipe is over ({final.get('ending')}) and can go on: 'gpusched resume {name} "
            "--deadline +20m'; this starts another search"
        )
    return ""

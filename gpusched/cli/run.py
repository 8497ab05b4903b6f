"""Start an experiment and watch it; at the deadline the best-trained model is on disk.

The search runs in a daemon of its own: closing the terminal ends nothing. Ctrl-C stops in good order and keeps the best
model; a second one terminates the trials; a third one kills them.
"""

from __future__ import annotations

import argparse

from gpusched.cli import attach, common, validate
from gpusched.daemon import start as launchpad
from gpusched.driver.clock import Beginning
from gpusched.errors import GpuschedError
from gpusched.folder import find


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_recipe(parser)
    parser.add_argument("--deadline", metavar="D", help="how long it may take: 90s, 10m, 1h30m")
    parser.add_argument(
        "--devices", metavar="X", help="auto, cpu, cpu:N, cuda, cuda:0,2, GPU UUIDs"
    )
    parser.add_argument("--policy", metavar="P", help="another policy than the recipe's")
    parser.add_argument("--seed", metavar="N", help="seed of the configurations and of training")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides")
    parser.add_argument("--dir", metavar="DIR", help="where experiments are made (default: runs)")
    parser.add_argument("--detach", action="store_true", help="do not stay to watch")
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    began = Beginning.now()
    from gpusched.recipe.load import load_recipe

    flags = {
        "deadline": args.deadline,
        "devices": args.devices,
        "policy": args.policy,
        "seed": args.seed,
    }
    recipe = load_recipe(args.recipe, args.overrides, **flags)
    runs = find.runs_folder(args.dir)
    for line in validate.remarks(recipe):
        common.note(f"note: {line}")
    validate.ask_policy(recipe, runs)
    source = None if str(args.recipe) == "-" else args.recipe
    paths = launchpad.make_experiment(runs, recipe, began, source)
    try:
        pid = launchpad.start_daemon(
            paths, recipe=recipe, say=lambda line: common.note(f"note: {line}")
        )
    except GpuschedError:
        if not paths.journal.exists() or not paths.socket.exists():
            launchpad.discard(paths)
        raise
    if args.detach:
        name = paths.root.name
        data = {"experiment": name, "folder": str(paths.root), "daemon_pid": pid}
        return common.tell(args, data, f"{name} runs in the background; 'gpusched watch' shows it")
    if not args.json and not attach.is_screen():
        print(f"{paths.root.name}: {paths.root}", flush=True)
    return attach.attach(paths, as_json=args.json, owns=True)

"""Start a search, continue one, watch one: ``run``, ``resume``, ``watch``."""

from __future__ import annotations

import argparse
import contextlib
import math
from typing import Any

from gpusched.cli import attach, common, steering, validate
from gpusched.cli.common import argument
from gpusched.daemon import start as launchpad
from gpusched.driver.assemble import Beginning
from gpusched.errors import GpuschedError, InputError
from gpusched.folder import find


def remark(line: str) -> None:
    """Print a remark for people."""
    common.note(f"note: {line}")


@common.command(common.RECIPE, common.DETACH, lines="event")
def run(args: argparse.Namespace) -> int:
    """Start a search and watch it; at the deadline the best-trained model is on disk.

    The search runs in a daemon of its own: closing the terminal ends nothing. Ctrl-C stops in good order and keeps the
    best model; a second one terminates the trials; a third one kills them.
    """
    began = Beginning.now()
    recipe = common.load_recipe(args)
    for line in validate.remarks(recipe):
        remark(line)
    validate.ask_policy(recipe)
    source = None if str(args.recipe) == "-" else args.recipe
    if recipe.cluster is not None:
        remark(f"joining the cluster {recipe.cluster}")
    paths = launchpad.make_experiment(find.runs_folder(args.dir), recipe, began, source)
    try:
        pid = launchpad.start_daemon(paths, say=remark)
    except GpuschedError:
        if not paths.journal.exists() or not paths.socket.exists():
            launchpad.discard(paths)
        raise
    return attach.begin(args, paths, pid, "runs")


# ---------------------------------------------------------------- resume


@common.command(
    common.EXPERIMENT,
    argument("--deadline WHEN", "+30m (more), 45m (from now on) or 18:30 (today)"),
    argument("--target X", "metric that is good enough; none: no target"),
    argument("--max-trials N", "most trials in all; none: any number"),
    common.DETACH,
    lines="event",
)
def resume(args: argparse.Namespace) -> int:
    """Continue a search that was interrupted, or that is over.

    Interrupted: its daemon was killed, crashed, or was lost with the machine. The journal is replayed, trials that
    still run are adopted, the dead are relaunched from their last checkpoint. The deadline stays where it was, unless
    --deadline moves it.

    Over: it was stopped, or met its deadline, its target or its limit of trials. With another limit trials that only
    the end had stopped train on from their last checkpoints; the time since the end does not count. A search that was
    stopped before its deadline needs no other limit.
    """
    paths = common.experiment(args)
    pid = launchpad.start_daemon(paths, resume=True, wish=wish(args), say=remark)
    return attach.begin(args, paths, pid, "continues")


def wish(args: argparse.Namespace) -> dict[str, Any]:
    """Read the limits that the search continues with. Raises InputError."""
    wished: dict[str, Any] = {} if args.deadline is None else dict(steering.when(args.deadline))
    if args.target is not None:
        wished["target"] = _number(args.target, "--target", "a number", float)
    if args.max_trials is not None:
        wished["max_trials"] = _number(args.max_trials, "--max-trials", "a whole number", int)
    return wished


def _number(text: str, option: str, kind: str, read: type[float] | type[int]) -> float | None:
    if text == "none":
        return None
    with contextlib.suppress(ValueError):
        number = read(text)
        if math.isfinite(number) and (read is float or number >= 1):
            return number
    raise InputError(f"{option} {text}: give {kind}, or none for no limit")


# ---------------------------------------------------------------- watch


_STEER = "let keys change the search: pause and stop trials, move the deadline, stop the search"


@common.command(common.EXPERIMENT, argument("--steer", _STEER), lines="event")
def watch(args: argparse.Namespace) -> int:
    """Show the live dashboard of a search; of a finished one, its end.

    Ctrl-C or q detaches and ends nothing. The dashboard changes nothing unless --steer is given.
    """
    paths = common.experiment(args)
    if not find.has_daemon(paths) and (args.json or not attach.has_screen()):
        return attach.conclude(paths, as_json=args.json)
    return attach.attach(paths, as_json=args.json, owns=False, steers=args.steer)

"""Changes to a search that runs: trials paused, stopped and added, the deadline moved, the end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.daemon import session
from gpusched.driver.assemble import read_recipe
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe import values
from gpusched.space.space import fill_in, parse_space
from gpusched.text import count, show_duration, show_hparams


@common.command(common.TRIAL)
def pause(args: argparse.Namespace) -> int:
    """Pause a trial: the trial saves a checkpoint at its next step and gives its atoms back until unpaused."""
    return _ask_of_trial(args, "pause")


@common.command(common.TRIAL)
def unpause(args: argparse.Namespace) -> int:
    """Let a paused trial continue, on the next free atom.

    The policy decides again at the trial's next report, and may pause it there: hypersched does so below a cut-off.
    """
    return _ask_of_trial(args, "unpause")


def _ask_of_trial(args: argparse.Namespace, verb: str) -> int:
    paths = common.experiment(args, running_first=True)
    number = session.trial_number(args.trial)
    answer = session.ask(paths, verb, trial=number)
    return common.tell(args, {"trial": number, "answer": answer}, answer)


@common.command(common.EXPERIMENT, argument("--trial TRIAL", "stop this trial only"))
def stop(args: argparse.Namespace) -> int:
    """Stop a search in good order: every trial leaves at its next step, the best model stays on disk.

    With --trial only that trial is stopped, for good.
    """
    if args.trial is not None:
        return _ask_of_trial(args, "stop_trial")
    return _end(args, "stop", "has stopped")


@common.command(common.EXPERIMENT)
def cancel(args: argparse.Namespace) -> int:
    """End a search now: its trials are killed where they are. The best model saved so far stays on disk."""
    return _end(args, "cancel", "is cancelled")


def _end(args: argparse.Namespace, verb: str, done: str) -> int:
    paths = common.experiment(args, running_first=True)
    session.ask(paths, verb)
    common.wait_for_end(paths)
    answer = f"{paths.root.name} {done}"
    return common.tell(args, {"experiment": paths.root.name, "answer": answer}, answer)


@common.command(
    argument("WHEN", "+30m (more), 45m (from now on) or 18:30"),
    common.EXPERIMENT,
)
def deadline(args: argparse.Namespace) -> int:
    """Move the deadline of a running search.

    WHEN is ``+30m`` for half an hour more, ``45m`` for that long from now on, or a time of day, ``18:30``. The plan
    that the policy seer has made in advance stays as it is; all other policies go by the new deadline at once.
    """
    paths = common.experiment(args, running_first=True)
    moved = {"experiment": paths.root.name, **session.ask(paths, "deadline", **when(args.when))}
    left = f"{paths.root.name} has {show_duration(moved['time_left_s'])} left"
    return common.tell(args, moved, left)


def when(text: str) -> dict[str, float]:
    """Read WHEN as the daemon takes it: ``add_s`` more, or ``in_s`` from now. Raises InputError."""
    try:
        if text.strip().startswith("+"):
            return {"add_s": values.duration(text.strip()[1:])}
        return {"in_s": values.deadline(text)}
    except ValueError as error:
        raise InputError(f"{error}, or +30m for half an hour more") from None


# ---------------------------------------------------------------- configurations that a person chooses


_VALUES = "a hyperparameter's value; a word without '=' names the search"


@common.command(
    argument("values", _VALUES, metavar="KEY=VALUE", nargs="*"),
    argument("--outside", "allow values outside the space"),
    argument("--seed N", "seed of training", type=int),
    common.EXPERIMENT_OPTION,
    lines="configuration",
)
def try_(args: argparse.Namespace) -> int:
    """Try a configuration in a running search: the configuration is the next trial to start.

    KEY=VALUE gives a hyperparameter, as in 'gpusched try lr=0.1 model.width=64'; all others are drawn at random. Values
    outside the search space need --outside.
    """
    given = [text for text in args.values if "=" in text]
    if words := [text for text in args.values if "=" not in text]:
        if len(words) > 1 or args.exp is not None:
            raise InputError(f"'{words[-1]}': write KEY=VALUE, as in lr=0.1")
        args.exp = words[0]
    paths = common.experiment(args, running_first=True)
    if not given:
        raise InputError("no configuration is given; write KEY=VALUE, as in 'gpusched try lr=0.1'")
    whole = complete(paths, common.assignments(given), may_be_outside=args.outside)
    answer = session.ask(paths, "try", hparams=whole, seed=args.seed)
    others = count(answer["before"], "configuration")
    before = f", behind {others} asked for before" if answer["before"] else ""
    text = f"{show_hparams(whole)} starts as soon as an atom is free{before}"
    return common.tell(args, {"experiment": paths.root.name, **answer}, text)


def complete(
    paths: ExperimentPaths, values: Mapping[str, Any], *, may_be_outside: bool = False
) -> dict[str, Any]:
    """Return a whole configuration with these values. Raises InputError with the bounds of each that is outside."""
    space = parse_space(read_recipe(paths).space)
    try:
        return fill_in(space, values, f"try {time.time_ns()}", may_be_outside=may_be_outside)
    except InputError as error:
        is_outside = "outside the space" in str(error)
        hint = "\n'--outside' allows values outside the space" if is_outside else ""
        raise InputError(f"{error}{hint}") from None

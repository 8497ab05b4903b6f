"""Start a search, continue, watch and change one: ``run``, ``resume``, ``watch``, ``pause``, ``stop``, ``try`` ..."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from typing import Any

from gpusched.cli import attach, common, validate
from gpusched.cli.common import argument
from gpusched.daemon import session
from gpusched.daemon import start as launchpad
from gpusched.driver.assemble import Beginning, read_recipe
from gpusched.errors import GpuschedError, InputError
from gpusched.folder import find
from gpusched.recipe import values
from gpusched.space.space import completed, parse_space
from gpusched.text import count, show_duration, show_hparams


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
    if recipe.cluster is not None:
        remark(f"joining the cluster {recipe.cluster}")
    runs = find.runs_folder(args.dir)
    with contextlib.suppress(InputError):  # none of this recipe
        before = find.find(recipe.name, runs)
        if not before.final_view.exists() and not find.has_daemon(before):
            word = find.as_argument(before) or f" {before.root.name}"
            remark(f"{before.root.name} was interrupted: 'gpusched resume{word}' continues it")
    paths = launchpad.make_experiment(runs, recipe, began, args.recipe)
    try:
        pid = launchpad.start_daemon(paths, say=remark)
    except GpuschedError:
        if not paths.journal.exists() or not paths.socket.exists():
            launchpad.discard(paths)
        raise
    return attach.begin(args, paths, pid, "runs")


# ---------------------------------------------------------------- resume


def when(text: str) -> dict[str, float]:
    """Read WHEN as the daemon takes it: ``add_s`` more, or ``in_s`` from now. Raises InputError."""
    try:
        if text.strip().startswith("+"):
            return {"add_s": values.duration(text.strip()[1:])}
        return {"in_s": values.deadline(text)}
    except ValueError as error:
        raise InputError(f"{error}, or +30m for half an hour more") from None


@common.command(
    common.EXPERIMENT,
    argument("--deadline WHEN", "+30m (more), 45m (from now on) or 18:30 (the next)", type=when),
    argument("--target X", "metric that is good enough; none: no target"),
    argument("--max-trials N", "most configurations to draw; none: any number"),
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
    paths, wished = common.experiment(args), wish(args)
    with contextlib.suppress(GpuschedError):  # a daemon that does not answer is named below
        if find.has_daemon(paths) and session.view(paths)["state"] == "stopping":
            remark(f"{paths.root.name} is ending, and continues after that")
            common.wait_for_end(paths)
    pid = launchpad.start_daemon(paths, resume=True, wish=wished, say=remark)
    return attach.begin(args, paths, pid, "continues")


def wish(args: argparse.Namespace) -> dict[str, Any]:
    """Read the limits that the search continues with. Raises InputError."""
    wished: dict[str, Any] = dict(args.deadline or {})
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


@common.command(common.EXPERIMENT, lines="event")
def watch(args: argparse.Namespace) -> int:
    """Show the live dashboard of a search; of a finished one, its end.

    Ctrl-C or q detaches and ends nothing.
    """
    return attach.attach(common.experiment(args), as_json=args.json, owns=False)


# ---------------------------------------------------------------- changes to a search that runs


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
    answer = session.ask(paths, verb, trial=args.trial)
    data = {"trial": args.trial, "answer": answer}
    return common.tell(args, data, f"{paths.root.name}: {answer}")


@common.command(
    common.EXPERIMENT, argument("--trial TRIAL", "stop this trial only", type=common.trial_number)
)
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
    common.note(session.ask(paths, verb))  # a step may take an hour
    common.wait_for_end(paths)
    answer = f"{paths.root.name} {done}"
    return common.tell(args, {"experiment": paths.root.name, "answer": answer}, answer)


@common.command(
    argument("WHEN", "+30m (more), 45m (from now on) or 18:30", type=when), common.EXPERIMENT
)
def deadline(args: argparse.Namespace) -> int:
    """Move the deadline of a running search.

    WHEN is ``+30m`` for half an hour more, ``45m`` for that long from now on, or a time of day, ``18:30``. The plan
    that the policy seer has made in advance stays as it is; all other policies go by the new deadline at once.
    """
    paths = common.experiment(args, running_first=True)
    moved = {"experiment": paths.root.name, **session.ask(paths, "deadline", **args.when)}
    left = f"{paths.root.name} has {show_duration(moved['time_left_s'])} left"
    return common.tell(args, moved, left)


# ---------------------------------------------------------------- a configuration that a person chooses


_VALUES = "a hyperparameter's value; a word without '=' names the search"


@common.command(
    argument("values", _VALUES, metavar="KEY=VALUE", nargs="*"),
    argument("--outside", "allow values outside the space"),
    common.DIR,
)
def try_(args: argparse.Namespace) -> int:
    """Try a configuration in a running search: the configuration is the next trial to start.

    KEY=VALUE gives a hyperparameter, as in 'gpusched try lr=0.1 model.width=64'; all others are drawn at random. Values
    outside the search space need --outside.
    """
    given = [text for text in args.values if "=" in text]
    words = [text for text in args.values if "=" not in text]
    if len(words) > 1:
        raise InputError(f"'{words[-1]}': write KEY=VALUE, as in lr=0.1")
    args.exp = words[0] if words else None
    paths = common.experiment(args, running_first=True)
    if not given:
        raise InputError("no configuration is given; write KEY=VALUE, as in 'gpusched try lr=0.1'")
    space, chosen = parse_space(read_recipe(paths).space), common.assignments(given)
    whole, found = completed(space, 0, f"try {time.time_ns()}", chosen, args.outside)
    if found:
        told = [f"{'.'.join(path)} {message}" for path, message in found]
        if any("outside the space" in line for line in told):
            told.append("'--outside' allows values outside the space")
        raise InputError("\n".join(told))
    answer = session.ask(paths, "try", hparams=whole)
    others = count(answer["before"], "configuration")
    before = f", behind {others} asked for before" if answer["before"] else ""
    text = f"{show_hparams(whole)} starts as soon as an atom is free{before}"
    return common.tell(args, {"experiment": paths.root.name, **answer}, text)

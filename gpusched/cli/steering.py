"""Requests to a running experiment: pause, unpause, stop, cancel, deadline."""

from __future__ import annotations

import argparse

from msgspec import Struct

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.recipe import values
from gpusched.text import show_duration


class OfTrial(Struct):
    """An answer about one trial."""

    trial: int
    answer: str


class Ended(Struct):
    """An answer about an experiment that was asked to end."""

    experiment: str
    answer: str


class Moved(Struct):
    """The deadline of an experiment, in seconds since the search began."""

    experiment: str
    deadline_s: float
    time_left_s: float


@common.command(common.TRIAL, prints=[OfTrial])
def pause(args: argparse.Namespace) -> int:
    """Pause a trial: it saves a checkpoint at its next step and gives its atoms back until it is unpaused."""
    return _ask_of_trial(args, "pause")


@common.command(common.TRIAL, prints=[OfTrial])
def unpause(args: argparse.Namespace) -> int:
    """Let a trial go on that was paused: it gets the next free atom.

    The policy decides again at the trial's next report, and may pause it there: hypersched does so below a cut-off.
    """
    return _ask_of_trial(args, "unpause")


def _ask_of_trial(args: argparse.Namespace, verb: str) -> int:
    paths = common.experiment(args, running_first=True)
    number = session.trial_number(args.trial)
    answer = session.ask(paths, verb, trial=number)
    return common.tell(args, OfTrial(number, answer), answer)


_NO_WAIT = argument("--no-wait", "do not wait until the experiment has ended")


@common.command(
    common.EXPERIMENT,
    _NO_WAIT,
    argument("--trial TRIAL", "stop this trial only"),
    prints=[Ended, OfTrial],
)
def stop(args: argparse.Namespace) -> int:
    """Stop an experiment in good order: every trial leaves at its next step, the best model stays on disk.

    With --trial only that trial is stopped, for good.
    """
    if args.trial is not None:
        return _ask_of_trial(args, "stop_trial")
    return _end(args, "stop", "has stopped")


@common.command(common.EXPERIMENT, _NO_WAIT, prints=[Ended])
def cancel(args: argparse.Namespace) -> int:
    """End an experiment now: its trials are killed where they are. The best model saved so far stays on disk."""
    return _end(args, "cancel", "is cancelled")


def _end(args: argparse.Namespace, verb: str, done: str) -> int:
    paths = common.experiment(args, running_first=True)
    answer = session.ask(paths, verb)
    if not args.no_wait:
        common.wait_for_end(paths)
        answer = f"{paths.root.name} {done}"
    return common.tell(args, Ended(paths.root.name, answer), answer)


@common.command(
    argument("WHEN", "+30m (more), 45m (from now on) or 18:30"),
    common.EXPERIMENT,
    prints=[Moved],
)
def deadline(args: argparse.Namespace) -> int:
    """Move the deadline of a running experiment.

    WHEN is ``+30m`` for half an hour more, ``45m`` for that long from now on, or a time of day, ``18:30``. The plan
    that the policy seer has made in advance stays as it is; all other policies go by the new deadline at once.
    """
    paths = common.experiment(args, running_first=True)
    moved = Moved(paths.root.name, **session.ask(paths, "deadline", **when(args.when)))
    left = f"{paths.root.name} has {show_duration(moved.time_left_s)} left"
    return common.tell(args, moved, left)


def when(text: str) -> dict[str, float]:
    """Read WHEN as the daemon takes it: ``add_s`` more, or ``in_s`` from now. Raises InputError."""
    try:
        if text.strip().startswith("+"):
            return {"add_s": values.duration(text.strip()[1:])}
        return {"in_s": values.deadline(text)}
    except ValueError as error:
        raise InputError(f"{error}, or +30m for half an hour more") from None

"""Move the deadline of a running experiment.

WHEN is ``+30m`` for half an hour more, ``45m`` for that long from now on, or a time of day, ``18:30``. What the policy
has planned in advance (seer) stays as it was planned; all others go by the new deadline at once.
"""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.recipe import values as config_values
from gpusched.text import show_duration


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("when", metavar="WHEN", help="+30m (more), 45m (from now on) or 18:30")
    common.add_experiment(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    answer = session.ask(paths, "deadline", **read(args.when))
    left = f"{paths.root.name} has {show_duration(answer['time_left_s'])} left"
    return common.tell(args, {"experiment": paths.root.name, **answer}, left)


def read(when: str) -> dict[str, float]:
    """Read WHEN as the daemon takes it: ``add_s`` more, or ``in_s`` from now. Raises InputError."""
    try:
        if when.strip().startswith("+"):
            return {"add_s": config_values.duration(when.strip()[1:])}
        return {"in_s": config_values.deadline(when)}
    except ValueError as error:
        raise InputError(f"{error}, or +30m for half an hour more") from None

"""Try a configuration in a running experiment: it is the next trial to start.

KEY=VALUE gives a hyperparameter, as in 'gpusched try lr=0.1 model.width=64'; what is left out is drawn at random. FILE
is YAML or JSON: a configuration, or a list of them. Values outside the search space need --outside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.driver.assemble import read_recipe
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.space.space import fill_in, parse_space
from gpusched.text import count, show_hparams


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    what = "a hyperparameter's value; a word without '=' names the experiment"
    parser.add_argument("values", metavar="KEY=VALUE", nargs="*", help=what)
    parser.add_argument("--file", metavar="FILE", type=Path, help="configurations (- for stdin)")
    parser.add_argument("--outside", action="store_true", help="allow values outside the space")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of training")
    common.add_experiment(parser, option=True)
    common.add_json(parser, "print one JSON object a configuration")


def run(args: argparse.Namespace) -> int:
    values = [text for text in args.values if "=" in text]
    if words := [text for text in args.values if "=" not in text]:
        if len(words) > 1 or args.exp is not None:
            raise InputError(f"'{words[-1]}': write KEY=VALUE, as in lr=0.1")
        args.exp = words[0]
    paths = common.experiment(args)
    wanted = [common.assignments(values)] if values else []
    if args.file is not None:
        wanted += _read(args.file)
    if not wanted:
        raise InputError(
            "which configuration? give KEY=VALUE, as in 'gpusched try lr=0.1', or --file"
        )
    whole = [complete(paths, values, may_be_outside=args.outside) for values in wanted]
    for hparams in whole:
        queue(args, paths, hparams, args.seed)
    return 0


def complete(
    paths: ExperimentPaths, values: Mapping[str, Any], *, may_be_outside: bool
) -> dict[str, Any]:
    """Return a whole configuration with these values. Raises InputError with the bounds of each that is outside."""
    space = parse_space(read_recipe(paths).space)
    try:
        return fill_in(space, values, f"try {time.time_ns()}", may_be_outside=may_be_outside)
    except InputError as error:
        hint = (
            "\n'--outside' allows values outside the space"
            if "outside the space" in str(error)
            else ""
        )
        raise InputError(f"{error}{hint}") from None


def queue(
    args: argparse.Namespace, paths: ExperimentPaths, hparams: Mapping[str, Any], seed: int | None
) -> None:
    """Ask the daemon to start this configuration next, and tell the answer."""
    answer = session.ask(paths, "try", hparams=dict(hparams), seed=seed)
    ahead = answer["before"]
    before = f", behind {count(ahead, 'configuration')} asked for before" if ahead else ""
    text = f"{show_hparams(hparams)} starts as soon as an atom is free{before}"
    common.tell(args, {"experiment": paths.root.name, **answer}, text)


def _read(path: Path) -> list[dict[str, Any]]:
    return list(_configurations(path, common.read_yaml(path)))


def _configurations(path: Path, found: object) -> Iterator[dict[str, Any]]:
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, dict) or not one:
            raise InputError(
                f"{path}: must be a configuration, as in {{lr: 0.1}}, or a list of them"
            )
        yield one

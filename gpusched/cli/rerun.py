"""Train a trial's configuration again, with the same seed unless --seed gives another.

Within the search where it is running: the next trial to start. Alone otherwise, or with --alone: an experiment of this
one trial, for as long as the recipe's deadline. What differs from the code and the packages that the search began with
is told.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from pathlib import Path
from typing import Any

from gpusched import policies
from gpusched.cli import attach, common
from gpusched.daemon import provenance, session
from gpusched.daemon import start as launchpad
from gpusched.driver.assemble import read_recipe
from gpusched.driver.clock import Beginning
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.files import read_json
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe import values as recipe_values
from gpusched.recipe.recipe import DEFAULT_SAMPLER, Recipe


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_trial(parser)
    parser.add_argument(
        "--seed", metavar="N", type=int, help="seed of training (default: the same)"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set a hyperparameter, as in --set lr=0.1; may be repeated",
    )
    parser.add_argument("--outside", action="store_true", help="allow values outside the space")
    parser.add_argument("--alone", action="store_true", help="an experiment of its own")
    parser.add_argument("--deadline", metavar="D", help="how long it may train alone: 10m, 18:30")
    parser.add_argument(
        "--atoms", metavar="N", type=int, default=1, help="atoms alone (default: 1)"
    )
    common.add_detach(parser)
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    number = session.trial_number(args.trial)
    known = read_json(paths.trial(number).hparams)
    if known is None:
        raise InputError(f"trial {number} of {paths.root.name} was never launched")
    asks = importlib.import_module("gpusched.cli.try")
    hparams: dict[str, Any] = dict(known["hparams"])
    if args.overrides:
        changed = {**hparams, **common.assignments(args.overrides)}
        hparams = asks.complete(paths, changed, may_be_outside=args.outside)
    seed = known["seed"] if args.seed is None else args.seed
    recipe = read_recipe(paths)
    for told in provenance.differences(paths, Path(recipe.script)):
        common.note(f"note: {told}")
    if find.has_daemon(paths) and not args.alone:
        asks.queue(args, paths, hparams, seed)
        return 0
    return _alone(args, paths, recipe, number, {"hparams": hparams, "seed": seed})


def _alone(
    args: argparse.Namespace,
    paths: ExperimentPaths,
    recipe: Recipe,
    number: int,
    asked: dict[str, Any],
) -> int:
    began = Beginning.now()
    options = policies.options_type("fifo")(R=recipe.policy_options.get("R"), atoms=args.atoms)
    alone = dataclasses.replace(
        recipe,
        name=f"{recipe.name[:50]}-trial-{number}",
        policy_name="fifo",
        policy_options=dataclasses.asdict(options),
        sampler_name=DEFAULT_SAMPLER,
        sampler_options={},
        max_trials=1,
        target=None,
    )
    if args.deadline is not None:
        try:
            alone = dataclasses.replace(alone, deadline_s=recipe_values.deadline(args.deadline))
        except ValueError as error:
            raise InputError(f"--deadline {args.deadline}: {error}") from None
    made = launchpad.make_experiment(paths.root.parent, alone, began)
    pid = launchpad.start_daemon(made, recipe=alone, wish={"try": asked})
    return attach.begin(args, made, pid, "runs")

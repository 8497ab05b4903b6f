"""Show the best model so far: its metric, its configuration, where its checkpoint lies, and how to use it."""

from __future__ import annotations

import argparse
import dataclasses
import shlex

from gpusched.cli import common
from gpusched.daemon import best_model as result
from gpusched.daemon import session
from gpusched.driver.assemble import read_recipe
from gpusched.folder.paths import ExperimentPaths
from gpusched.space import arguments
from gpusched.text import flat, show_metric


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    best = result.describe(paths)
    better = session.best_unsaved(paths)
    if args.json:
        common.print_json({**dataclasses.asdict(best), "best_unsaved": better})
        return 0
    score = f"{best.metric} {show_metric(best.value)}"
    print(f"{score}: trial {best.trial} at step {best.step}")
    if better is not None:
        print(
            f"behind the best report, {show_metric(better['metric'])} of trial {better['trial']} at step "
            f"{better['step']}, which has no checkpoint: {better['why']}"
        )
    for key, value in flat(best.hparams):
        print(f"  {key} = {value}")
    print(f"checkpoint: {paths.best / 'checkpoint'}")
    print(f"in Python:  gpusched.load({str(paths.root)!r}).state")
    print(f"by hand:    {by_hand(paths, best)}")
    return 0


def by_hand(paths: ExperimentPaths, best: result.Description) -> str:
    """Return the command that trains this configuration without gpusched, on one device, to the best model's step."""
    recipe = read_recipe(paths)
    words = [str(recipe.python or "python"), str(recipe.script)]
    words += arguments.fill(recipe.args, best.hparams)
    parses_itself = any(map(arguments.names, recipe.args))
    if not parses_itself:  # what it does not know might be refused
        words += ["--seed", str(best.seed)] * (best.seed is not None)
        words += ["--max-steps", str(best.step)]
    for key, value in arguments.unnamed(recipe.args, best.hparams):
        words += [f"--{key}", arguments.text(value)]
    return shlex.join(words)

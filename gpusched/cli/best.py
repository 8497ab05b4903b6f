"""Show the best model so far: its metric, its configuration, where its checkpoint lies, and how to use it."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path

from gpusched.cli import common
from gpusched.daemon import best_model as result
from gpusched.daemon import provenance, session
from gpusched.driver.assemble import read_recipe
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe.checks import PRIVATE
from gpusched.space import arguments
from gpusched.text import flat, show_metric


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    best = result.describe(paths)
    better = session.best_unsaved(paths)
    code, script = provenance.recorded(paths), Path(read_recipe(paths).script)
    differs = provenance.differences(paths, script)
    if args.json:
        told = {"best_unsaved": better, "code": code, "differs_now": differs}
        common.print_json({**dataclasses.asdict(best), **told})
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
    if code is not None and (words := provenance.in_words(code)):
        print(f"code:       {words}")
    for line in differs:
        print(f"            now {line}")
    print(f"checkpoint: {paths.best / 'checkpoint'}")
    print(f"in Python:  gpusched.load({str(paths.root)!r}).state")
    print(f"by hand:    {by_hand(paths, best)}")
    return 0


def by_hand(paths: ExperimentPaths, best: result.Description) -> str:
    """Return the command that trains this configuration without gpusched, on one device, to the best model's step.

    What ``gpusched.init()`` needs goes through the environment: a script may refuse options that it does not know.
    """
    recipe = read_recipe(paths)
    environment = {name: value for name, value in recipe.env.items() if value is not None}
    environment["GPUSCHED_HPARAMS"] = str(paths.best / "hparams.json")
    environment["GPUSCHED_MAX_STEPS"] = str(best.step)
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    words = [str(recipe.python or "python"), str(recipe.script)]
    words += arguments.fill(recipe.args, best.hparams)
    where = [] if recipe.cwd == Path(PRIVATE) else ["cd", shlex.quote(str(recipe.cwd)), "&&"]
    return " ".join([*where, *settings, shlex.join(words)])

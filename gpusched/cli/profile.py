"""Measurements of a recipe's speed: ``profile``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from msgspec import Struct

from gpusched.cli import common
from gpusched.daemon import start as launchpad
from gpusched.driver import profiles
from gpusched.driver.clock import Beginning
from gpusched.errors import NoTrialSucceeded
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.recipe.recipe import Recipe
from gpusched.text import count


class Profiled(Struct):
    """Seconds of a step and s(a) by number of atoms; ``overhead_s``: To, seconds of a launch or resize."""

    step_s: Mapping[int, float]
    scaling: Mapping[int, float]
    overhead_s: float


_SIZES = "numbers of atoms to measure (default: 1, 2, 4, .. all)"


@common.command(
    common.RECIPE_HERE,
    common.argument("--sizes A,B,..", _SIZES, type=common.numbers),
    common.argument("--steps N", "steps at each size (default: 5)", type=int, default=5),
    prints=[Profiled],
)
def profile(args: argparse.Namespace) -> int:
    """Measure how a configuration of the recipe scales over atoms, s(a), and what a launch or resize costs, To.

    One random configuration trains a few steps at each size, for at most --deadline (30m). The table is kept with a
    hash of recipe and script; later runs of exactly this recipe start from the table instead of the built-in guess
    (unless the recipe says ``scaling``), and go on learning.
    """
    began = Beginning.now()
    from gpusched.recipe.load import load_recipe

    asked = load_recipe(args.recipe, args.overrides, devices=args.devices)
    sizes = args.sizes or _sizes(asked)
    runs = find.runs_folder(args.dir)
    recipe = _recipe(args, sizes)
    paths = launchpad.make_experiment(runs, recipe, began)
    launchpad.start_daemon(paths, recipe=recipe)
    if not args.json:
        common.note(f"measuring {count(len(sizes), 'size')} in {paths.root} ..")
    common.wait_for_end(paths)
    found = _measured(paths)
    kept = profiles.keep(runs, asked, found)
    told = f"{_table(found)}\nkept in {kept}; 'gpusched run {args.recipe}' starts from this table"
    return common.tell(args, Profiled(found.step_s, found.scaling, found.overhead_s), told)


def _recipe(args: argparse.Namespace, sizes: list[int]) -> Recipe:
    """Return the user's recipe as a search that measures: one trial, so many steps at each size."""
    from gpusched.recipe.load import load_recipe

    recipe = load_recipe(
        args.recipe,
        [
            *args.overrides,
            f"policy.sizes={sizes}",
            f"policy.steps={args.steps + 1}",
            "policy.R=null",  # a short recipe must not be over before all sizes are measured
            "max_trials=1",
        ],
        policy="profile",
        deadline=args.deadline or "30m",
        devices=args.devices,
    )
    return replace(recipe, target=None)  # it measures; how good the model is does not matter


def _measured(paths: ExperimentPaths) -> profiles.Measured:
    """Read the profile from the journal. Raises NoTrialSucceeded."""
    profile = profiles.measure(timeline.read(paths.journal))
    if not profile.step_s:
        raise NoTrialSucceeded(
            f"no step was measured; 'gpusched status {paths.root.name}' says why"
        )
    return profile


def _table(profile: profiles.Measured) -> str:
    rows = []
    for atoms, time_s in profile.step_s.items():
        scaling = profile.scaling[atoms]
        rows.append((atoms, f"{time_s:.3f} s", f"{scaling:.2f}x", "#" * round(10 * scaling)))
    columns = common.table(("atoms", "step", "s(a)", ""), rows, ("atoms", "step", "s(a)"))
    return f"{columns}\na launch or resize costs To = {profile.overhead_s:.2f} s"


def _sizes(recipe: Recipe) -> list[int]:
    """Return 1, 2, 4, .. and all atoms."""
    _, total = common.atoms_here(recipe)
    sizes = [2**power for power in range(total.bit_length()) if 2**power < total]
    return [*sizes, total]

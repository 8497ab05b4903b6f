"""Checks of a recipe before its search: ``validate``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.errors import InputError, RecipeError
from gpusched.folder import find
from gpusched.policies import OF_ONE_SIZE
from gpusched.recipe.values import duration, power_in_words
from gpusched.text import count, printable, show, show_duration, show_hparams

if TYPE_CHECKING:
    from gpusched.recipe.recipe import Recipe

SAMPLES = 3
#: More atoms than a workstation has.
MANY = 64


@common.command(
    common.RECIPE,
    argument(
        "--rehearse",
        "run a configuration through a pause, two ranks and one again, and tell what a search would get wrong",
    ),
    argument("--limit TIME", "the time that a rehearsal may take (10m)", default="10m"),
    argument("--configurations N", "how many to rehearse (1)", type=int, default=1),
)
def validate(args: argparse.Namespace) -> int:
    """Check a recipe: all its problems at once, or a summary of what would run; with --rehearse its script too.

    Exit code 0 if the recipe, and the script that was rehearsed, is good; 2 if not.
    """
    try:
        limit_s = common.read_option("--limit", args.limit, duration)
        recipe = common.load_recipe(args)
        notes = list(remarks(recipe))
        ask_policy(recipe)
    except InputError as error:
        if not args.json:
            raise
        problems = error.problems if isinstance(error, RecipeError) else [str(error)]
        common.print_json({"recipe": str(args.recipe), "ok": False, "problems": list(problems)})
        return error.exit_code
    if not args.json:
        print(f"{args.recipe} is good. A search would run:", flush=True)
        print("\n".join(lines(recipe)), flush=True)
        for line in notes:
            common.note(f"note: {line}")
    seen = []
    if args.rehearse:
        from gpusched.cli.rehearse import rehearse

        seen = rehearse(recipe, find.runs_folder(args.dir), limit_s, args.configurations)
    is_good = all(rehearsal.is_good for rehearsal in seen)
    if args.json:
        data = {"recipe": str(args.recipe), "ok": is_good, **summary(recipe), "notes": notes}
        data |= {"rehearsals": [rehearsal.to_json() for rehearsal in seen]} if seen else {}
        common.print_json(data)
    else:
        for rehearsal in seen:
            print(*rehearsal.lines(), sep="\n")
    return 0 if is_good else InputError.exit_code


def remarks(recipe: Recipe) -> Iterator[str]:
    """Yield oddities of a recipe, and of its script, that are not surely mistakes."""
    with suppress(OSError):
        text = recipe.script.read_text(errors="replace")
        is_own = recipe.cwd == Path("private") or "trial.folder" in " ".join([text, *recipe.args])
        continues = not is_own and "torch.load(" in text and "torch.save(" in text
        told = {
            "does not mention gpusched: unless a module that it imports does, every trial ends without a report. Write "
            "`from gpusched import trial`, `for epoch in trial.steps(50, model=model, opt=opt)` and `trial.report(..)` "
            "once an epoch": "gpusched" not in text,
            "saves and loads models itself, and trials share the working directory: unless each names files of its "
            "own, one begins with what another has saved. gpusched saves and restores what trial.steps is given: leave "
            "both out, or write `cwd: private`": continues,
            "sets MASTER_PORT, where nobody answers: a trial would wait there until it is taken for hung. Leave that "
            "out, as under torchrun": re.search(r"environ\[.MASTER_PORT.\] *=[^=]", text),
        }
        yield from (f"{recipe.script.name} {note}" for note, holds in told.items() if holds)


def ask_policy(recipe: Recipe) -> None:
    """Raise InputError where the policy cannot work with the recipe.

    The policy is asked about more than enough atoms, so that a problem is one on any machine. ``run`` asks again with
    the real number.
    """
    from gpusched import policies
    from gpusched.driver.assemble import rules

    policy = policies.make(recipe.policy_name, recipe.policy_options)
    problems = list(policy.problems(rules(recipe), MANY))
    if problems:
        raise RecipeError([f"policy.{option}: {message}" for option, message in problems])


def summary(recipe: Recipe) -> dict[str, Any]:
    """Describe what would run: the resolved recipe, the number of configurations, and the first few."""
    from gpusched.space.space import parse_space

    sampler = recipe.configurations()
    found = [sampler.sample(n) for n in range(SAMPLES)]
    return {
        "resolved": recipe.resolved(),
        "space": dict(parse_space(recipe.space).describe()),
        "configurations": sampler.size,
        "first": [sample for sample in found if sample is not None],
    }


def lines(recipe: Recipe) -> Iterator[str]:
    """Word the summary for people."""
    for name, text in _rows(recipe, summary(recipe)):
        yield f"  {name:<9} {printable(text)}".rstrip()


def _rows(recipe: Recipe, about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", recipe.name
    yield "script", " ".join([str(recipe.script), *recipe.args])
    yield "metric", f"{recipe.metric}, {'more' if recipe.mode == 'max' else 'less'} is better"
    yield "deadline", show_duration(recipe.deadline_s)
    yield "policy", f"{recipe.policy_name}  {_options(recipe)}"
    yield "devices", recipe.devices
    is_one = recipe.policy_name in OF_ONE_SIZE or recipe.max_atoms == 1
    sizes = ", ".join(map(str, (recipe.sizes or (1,))[:1] if is_one else recipe.sizes))
    most = f", at most {recipe.max_atoms}" if recipe.max_atoms and not is_one else ""
    yield "atoms", f"{sizes or 'any number'} for a trial{most}"
    yield "rate", power_in_words(recipe.lr_power, recipe.batch)
    width = max(map(len, about["space"]))
    for place, (name, text) in enumerate(about["space"].items()):
        yield "" if place else "space", f"{name:<{width}}  {text}"
    if recipe.has_memory:
        own = " ".join(f"{name}={value}" for name, value in recipe.sampler_options.items())
        yield "sampler", f"{recipe.sampler_name}  {own}"
    if recipe.after:
        yield "after", f"{count(len(recipe.after), 'trial')} of another search, as many as fit"
    both = (about["configurations"], recipe.max_trials)
    limits = [limit for limit in both if limit is not None]
    yield "trials", count(min(limits), "configuration") if limits else "any number"
    for place, sample in enumerate(about["first"]):
        yield "" if place else "such as", show_hparams(sample)


def _options(recipe: Recipe) -> str:
    """Word the policy's options that are not at their defaults."""
    from gpusched.recipe.classes import check_policy

    _, defaults, _ = check_policy(recipe.policy_name)
    told = (one for one in recipe.policy_options.items() if one[1] != defaults.get(one[0]))
    return " ".join(f"{name}={show(value)}" for name, value in told)

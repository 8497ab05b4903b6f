"""One simulated run (``Setup``), what is made of it, and the runs that a command line asks for (``plan``).

The search is assembled from a recipe like a live one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched import plugins, policies
from gpusched.core.experiment import Experiment
from gpusched.driver.assemble import make_experiment, rules
from gpusched.errors import InputError
from gpusched.recipe.classes import check_policy, check_sampler, option_names
from gpusched.recipe.recipe import Recipe
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Delays, Workload, parse_scaling
from gpusched.sim.workload import load_workload
from gpusched.space.space import parse_space


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run. Everything in it is plain and can be sent to another process. Times in virtual seconds.

    ``scaling`` is the truth, as on the command line; ``assumed`` what the scheduler is told (None: the truth;
    ``auto``: it learns). ``label``: a name for what is varied.
    """

    policy: str = "hypersched"
    options: Mapping[str, Any] = field(default_factory=dict)
    workload: str = "synthetic"
    atoms: int = 8
    deadline_s: float = 60.0
    seed: int = 0
    scaling: str = "linear"
    assumed: str | None = None
    delays: Delays = field(default_factory=Delays)
    max_atoms: int | None = None
    sizes: tuple[int, ...] = ()
    max_trials: int | None = None
    max_failures: int = 3
    sampler: str = "random"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    label: str = ""

    def load(self) -> Workload:
        return load_workload(self.workload)

    def machine(self) -> SimExecutor:
        scaling = parse_scaling(self.scaling)[1]
        return SimExecutor(
            self.load(), self.atoms, scaling=scaling, delays=self.delays, seed=self.seed
        )


def recipe(setup: Setup) -> Recipe:
    """Return the recipe that a live search of this kind would have."""
    workload = setup.load()
    assumed = setup.assumed or setup.scaling
    kind, wanted = policies.options_type(setup.policy), {**workload.defaults, **setup.options}
    known = {item.name for item in dataclasses.fields(kind)} & wanted.keys()
    options = dataclasses.asdict(kind(**{key: wanted[key] for key in known}))
    return Recipe(
        name=f"sim-{policies.label(setup.policy)}",
        script=Path(f"simulated:{setup.workload}"),
        cwd=Path("/"),
        deadline_s=setup.deadline_s,
        metric=workload.metric,
        mode=workload.mode,
        space=workload.space,
        policy_name=setup.policy,
        policy_options=options,
        devices=f"cpu:{setup.atoms}",
        max_atoms=setup.max_atoms,
        sizes=setup.sizes,
        scaling=assumed if assumed == "auto" else parse_scaling(assumed)[0],
        seed=setup.seed,
        sampler_name=setup.sampler,
        sampler_options=setup.sampler_options,
        max_trials=setup.max_trials,
        max_failures=setup.max_failures,
        target=setup.target,
    )


#: Fields of ``Rules`` in which a simulated search differs from a live one: no trial hangs. ``best_every_s`` spares a
#: real disk; here a save costs what ``Delays`` says.
QUIET: Mapping[str, Any] = {"watch": False, "best_every_s": 0.0, "save_every_s": None}


def experiment(of: Recipe) -> Experiment:
    return make_experiment(of, dataclasses.replace(rules(of), **QUIET))


# ---------------------------------------------------------------- a command line


def plan(
    base: Setup, names: Sequence[str], overrides: Mapping[str, object], seeds: int
) -> list[Setup]:
    """Return the runs of a command line: ``base`` under each of these policies, on so many seeds from its own on.

    ``overrides``: options, each for every policy that has it. Raises InputError with all problems.
    """
    workload = base.load()
    parse_scaling(base.scaling)
    labels = {plugins.absolute(name, Path.cwd()): name for name in names}
    options, wrong = choose_options(labels, overrides, workload)
    for option, number in (("--atoms", base.atoms), ("--seeds", seeds)):
        if number < 1:
            wrong.append(f"{option} must be at least 1, not {number}")
    space = parse_space(workload.space)
    sampler, sampler_options, found = check_sampler(base.sampler, Path.cwd(), space)
    wrong += [f"--sampler: {message}" for _, message in found]
    _refuse(wrong)
    base = dataclasses.replace(base, sampler=sampler, sampler_options=sampler_options)
    setups = [
        dataclasses.replace(base, policy=policy, label=labels[policy], options=chosen, seed=seed)
        for policy, chosen in options.items()
        for seed in range(base.seed, base.seed + seeds)
    ]
    for setup in setups[::seeds]:
        wrong += _problems(setup)
    _refuse(wrong)
    return setups


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))


def _problems(setup: Setup) -> Iterator[str]:
    of = recipe(setup)
    of.require_atoms(setup.atoms)
    search = experiment(of)
    for option, message in search.policy.problems(search.state.rules, setup.atoms):
        yield f"{setup.policy}.{option}: {message}"


def choose_options(
    names: Iterable[str], overrides: Mapping[str, object], workload: Workload
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the complete options of each policy, and all problems.

    They are its own defaults, then the workload's, then ``overrides``: each goes to every policy that has the option.
    """
    chosen: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    own = {name: option_names(name) for name in names}
    known = {option for options in own.values() for option in options}
    for name, options in own.items():
        given = {key: value for key, value in workload.defaults.items() if key in options}
        for option, value in overrides.items():
            if option in options or option not in known:  # one that no policy knows is refused
                given[option] = value
        _, chosen[name], found = check_policy({"name": name, **given})
        problems += [f"{'.'.join(map(str, (name, *path[1:])))}: {text}" for path, text in found]
    return chosen, problems


def read_delays(deadline_s: float, text: str) -> Delays:
    """Read a delay of launches and resizes: seconds, or a share of the deadline. Raises ValueError."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"'{text}' is not a delay; write seconds (0.5) or a share (5%)") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be 0 or more, not {text}")
    seconds = value / 100 * deadline_s if text.endswith("%") else value
    return Delays(launch_s=seconds, resize_s=seconds)

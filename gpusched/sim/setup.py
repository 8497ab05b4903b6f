"""One simulated run (``Setup``), what is made of it, and the runs that a command line asks for (``plan``).

The search is assembled from a recipe like a live one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpusched import plugins, policies
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.driver.assemble import make_experiment, rules
from gpusched.errors import InputError
from gpusched.recipe.classes import check_policy, check_sampler, option_names
from gpusched.recipe.recipe import DEFAULT_SAMPLER, Recipe
from gpusched.recipe.values import duration
from gpusched.recipe.yaml import Unreadable, read_yaml
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Delays, Workload, parse_scaling
from gpusched.sim.workload import load_workload

MAX_ATOMS = 65_536
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run. Everything in it is plain and can be sent to another process. Times in virtual seconds.

    ``scaling`` is the truth, as on the command line; ``assumed`` what the scheduler is told (None: the truth;
    ``auto``: it learns). ``watch``: whether trials that hang are looked for. ``label``: a name for what is varied.
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
    watch: bool = False
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
        space=workload.space(setup.seed),
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


def quiet(setup: Setup) -> dict[str, Any]:
    """Return fields of ``Rules`` in which a simulated search differs from a live one.

    ``best_every_s`` spares a real disk; here a save costs what ``Delays`` says.
    """
    return {"watch": setup.watch, "best_every_s": 0.0, "save_every_s": None}


def rules_of(setup: Setup, of: Recipe) -> Rules:
    return dataclasses.replace(rules(of), **quiet(setup))


def experiment(setup: Setup, of: Recipe) -> Experiment:
    return make_experiment(of, rules_of(setup, of))


# ---------------------------------------------------------------- a command line


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command line, as typed."""

    workload: str = "synthetic"
    policies: Sequence[str] = ("hypersched",)
    overrides: Sequence[str] = ()
    atoms: int = 8
    deadline: str = "60"
    scaling: str = "linear"
    delay: str = "0"
    seeds: int = 10
    first_seed: int = 0
    sampler: str = DEFAULT_SAMPLER
    more: Mapping[str, Any] = field(default_factory=dict)


def plan(request: Request) -> list[Setup]:
    """Return all runs: every policy on every seed. Raises InputError with all problems."""
    workload = load_workload(request.workload)
    options, wrong = choose_options(request.policies, request.overrides, workload)

    def checked(what: str, read: Callable[[str], T], text: str) -> T | None:
        try:
            return read(text)
        except ValueError as error:
            wrong.append(f"{what}: {error}")
        except InputError as error:
            wrong.append(str(error))
        return None

    deadline_s = checked("--deadline", duration, request.deadline) or 1.0
    checked("--scaling", parse_scaling, request.scaling)
    delays = checked("--delay", lambda text: _delays(text, deadline_s), request.delay)
    if not 1 <= request.atoms <= MAX_ATOMS:
        wrong.append(f"--atoms must be from 1 to {MAX_ATOMS}, not {request.atoms}")
    if request.seeds < 1:
        wrong.append(f"--seeds must be at least 1, not {request.seeds}")
    sampler, sampler_options, found = check_sampler(request.sampler, Path.cwd(), None)
    wrong += [f"--sampler: {message}" for _, message in found]
    _refuse(wrong)
    setups = [
        Setup(
            policy=policy,
            options=chosen,
            workload=request.workload,
            atoms=request.atoms,
            deadline_s=deadline_s,
            seed=request.first_seed + seed,
            scaling=request.scaling,
            delays=delays or Delays(),
            sampler=sampler,
            sampler_options=sampler_options,
            **request.more,
        )
        for policy, chosen in options.items()
        for seed in range(request.seeds)
    ]
    for setup in setups[:: request.seeds]:
        wrong += _problems(setup)
    _refuse(wrong)
    return setups


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))


def _problems(setup: Setup) -> Iterator[str]:
    of = recipe(setup)
    of.require_atoms(setup.atoms)
    policy = policies.make(of.policy_name, of.policy_options)
    for option, message in policy.problems(rules_of(setup, of), setup.atoms):
        yield f"{setup.policy}.{option}: {message}"


def choose_options(
    names: Sequence[str], overrides: Sequence[str], workload: Workload
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the complete options of each policy, and all problems.

    They are its own defaults, then the workload's, then ``--set``: ``key=value`` goes to every chosen policy that has
    the option, ``policy.key=value`` to that one.
    """
    problems: list[str] = []
    names = [plugins.absolute(name, Path.cwd()) for name in names]
    known = [name for name in names if policies.is_known(name)]
    for name in names:
        if name not in known:
            problems += [f"--policy: {message}" for _, message in check_policy(name)[2]]
    wanted: dict[str, dict[str, Any]] = {
        name: {k: v for k, v in workload.defaults.items() if k in option_names(name)}
        for name in known
    }
    for text in overrides:
        problems += [f"--set {text}: {message}" for message in _override(text, wanted)]
    chosen = {}
    for name, given in wanted.items():
        _, chosen[name], found = check_policy({"name": name, **given})
        problems += [f"{'.'.join(map(str, (name, *path[1:])))}: {text}" for path, text in found]
    return chosen, problems


def _override(text: str, wanted: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Put one ``--set`` into the options wanted; yield what is wrong with it."""
    key, equals, value_text = text.partition("=")
    policy, dot, option = key.strip().rpartition(".")
    if not equals or not option:
        yield "write key=value or policy.key=value, as in --set eta=3"
        return
    try:
        document = read_yaml(value_text, "--set")
    except Unreadable as error:
        yield str(error)
        return
    yield from (problem.message for problem in document.problems)
    if dot and policy not in wanted:
        yield f"policy {policy} is not simulated here ({', '.join(wanted) or 'none'})"
        return
    names = [policy] if dot else [name for name in wanted if option in option_names(name)]
    for name in names or list(wanted)[:1]:  # an option that no policy knows is refused by the first
        wanted[name][option] = document.data


def _delays(text: str, deadline_s: float) -> Delays:
    """Read a delay of launches and resizes: seconds, or a share of the deadline. Raises ValueError."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"'{text}' is not a delay; write seconds (0.5) or a share (5%)") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be 0 or more, not {text}")
    seconds = value / 100 * deadline_s if text.endswith("%") else value
    return Delays(launch_s=seconds, resize_s=seconds)

"""One simulated run (``Setup``), what is made of it, and the runs that a command line asks for (``plan``).

The search is assembled from a recipe like a live one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from gpusched.sim.physics import Delays, Noise, parse_scaling
from gpusched.sim.workload import Workload, load_workload

MAX_ATOMS = 65_536
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run. Everything in it is plain and can be sent to another process. Times in virtual seconds.

    ``scaling`` is the truth, as on the command line; ``assumed`` what the scheduler is told (None: the truth;
    ``auto``: it learns). ``watch``: whether trials that hang are looked for.
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
    noise: Noise = field(default_factory=Noise)
    max_atoms: int | None = None
    sizes: tuple[int, ...] = ()
    max_trials: int | None = None
    max_failures: int = 3
    watch: bool = False
    sampler: str = "random"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    #: A name for what is varied, carried through to the result.
    label: str = ""

    def load(self) -> Workload:
        return load_workload(self.workload)

    def machine(self) -> SimExecutor:
        return SimExecutor(
            self.load(),
            self.atoms,
            scaling=parse_scaling(self.scaling)[1],
            delays=self.delays,
            noise=self.noise,
            seed=self.seed,
        )


def recipe(setup: Setup) -> Recipe:
    """Return the recipe that a live search of this kind would have."""
    workload = setup.load()
    assumed = setup.assumed or setup.scaling
    return Recipe(
        name=f"sim-{policies.label(setup.policy)}",
        script=Path(f"simulated:{setup.workload}"),
        cwd=Path("/"),
        deadline_s=setup.deadline_s,
        metric=workload.metric,
        mode=workload.mode,
        space=workload.space(setup.seed),
        policy_name=setup.policy,
        policy_options=complete_options(setup.policy, {**workload.defaults, **setup.options}),
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


def complete_options(policy: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the policy: those wanted that it has, the defaults of the others."""
    kind = policies.options_type(policy)
    known = {item.name for item in dataclasses.fields(kind)}
    return dataclasses.asdict(kind(**{key: wanted[key] for key in wanted if key in known}))


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
    """A command line, as typed. Values separated by commas make a grid."""

    workload: str = "synthetic"
    policies: Sequence[str] = ("hypersched",)
    overrides: Sequence[str] = ()
    atoms: str = "8"
    deadline: str = "60"
    scaling: str = "linear"
    #: Launch and resize delay: seconds, or a share of the deadline (5%). None: what the workload recorded, or 0.
    delay: str | None = None
    noise: Noise = field(default_factory=Noise)
    seeds: int = 10
    first_seed: int = 0
    sampler: str = DEFAULT_SAMPLER
    more: Mapping[str, Any] = field(default_factory=dict)


class Problems:
    """A list of problems, all told at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def of(self, what: str, text: str, read: Callable[[str], T]) -> list[T]:
        """Read each of the values separated by commas."""
        found = []
        for part in text.split(","):
            try:
                found.append(read(part.strip()))
            except ValueError as error:
                self.lines.append(f"{what}: {error}")
            except InputError as error:
                self.lines.append(str(error))
        return found

    def stop_if_any(self) -> None:
        if self.lines:
            raise InputError("\n".join(dict.fromkeys(self.lines)))


def plan(request: Request) -> list[Setup]:
    """Return all runs: for each situation every policy on every seed. Raises InputError with all problems."""
    problems = Problems()
    workload = load_workload(request.workload)
    options = choose_options(request.policies, request.overrides, workload, problems)
    atoms = problems.of("--atoms", request.atoms, _atoms)
    deadlines = problems.of("--deadline", request.deadline, duration)
    scalings = problems.of("--scaling", _tables(request.scaling), _scaling)
    delays = problems.of("--delay", request.delay or "", _delay)
    problems.lines += request.noise.problems()
    if request.seeds < 1:
        problems.lines.append(f"--seeds must be at least 1, not {request.seeds}")
    sampler, sampler_options, found = check_sampler(request.sampler, Path.cwd(), None)
    problems.lines += [f"--sampler: {message}" for _, message in found]
    problems.stop_if_any()
    setups: list[Setup] = []
    for n, deadline_s, scaling, delay in itertools.product(atoms, deadlines, scalings, delays):
        situation = Setup(
            workload=request.workload,
            atoms=n,
            deadline_s=deadline_s,
            scaling=scaling,
            delays=_delays(workload, delay, deadline_s),
            noise=request.noise,
            sampler=sampler,
            sampler_options=sampler_options,
            **request.more,
        )
        setups += _runs(situation, options, request)
    for setup in setups:
        if setup.seed == request.first_seed:
            of = recipe(setup)
            too_many = list(of.too_many_atoms(setup.atoms))
            problems.lines += [f"{'.'.join(path)}: {message}" for path, message in too_many]
            wrong = () if too_many else _policy_problems(setup, of)
            problems.lines += [f"{setup.policy}.{option}: {message}" for option, message in wrong]
    problems.stop_if_any()
    return setups


def _policy_problems(setup: Setup, of: Recipe) -> Iterator[tuple[str, str]]:
    policy = policies.make(of.policy_name, of.policy_options)
    return policy.problems(rules_of(setup, of), setup.atoms)


def _runs(
    situation: Setup, options: Mapping[str, Mapping[str, Any]], request: Request
) -> Iterable[Setup]:
    seeds = range(request.first_seed, request.first_seed + request.seeds)
    for (policy, chosen), seed in itertools.product(options.items(), seeds):
        yield dataclasses.replace(situation, policy=policy, options=chosen, seed=seed)


def choose_options(
    names: Sequence[str],
    overrides: Sequence[str],
    workload: Workload,
    problems: Problems,
) -> dict[str, dict[str, Any]]:
    """Return the complete options of each policy: its own defaults, then the workload's, then ``--set``.

    ``--set key=value`` goes to every chosen policy that has the option, ``--set policy.key=value`` to that one.
    """
    names = [plugins.absolute(name, Path.cwd()) for name in names]
    known = [name for name in names if policies.is_known(name)]
    for name in names:
        if name not in known:
            problems.lines += [f"--policy: {message}" for _, message in check_policy(name)[2]]
    defaults = workload.defaults
    wanted: dict[str, dict[str, Any]] = {
        name: {k: v for k, v in defaults.items() if k in option_names(name)} for name in known
    }
    for text in overrides:
        _override(text, wanted, problems)
    chosen = {}
    for name, given in wanted.items():
        _, chosen[name], found = check_policy({"name": name, **given})
        for path, message in found:
            problems.lines.append(f"{'.'.join(map(str, (name, *path[1:])))}: {message}")
    return chosen


def _override(text: str, wanted: Mapping[str, dict[str, Any]], problems: Problems) -> None:
    key, equals, value_text = text.partition("=")
    policy, dot, option = key.strip().rpartition(".")
    if not equals or not option:
        problems.lines.append(
            f"--set {text}: write key=value or policy.key=value, as in --set eta=3"
        )
        return
    try:
        document = read_yaml(value_text, "--set")
    except Unreadable as error:
        problems.lines.append(f"--set {text}: {error}")
        return
    problems.lines += [f"--set {text}: {problem.message}" for problem in document.problems]
    if dot and policy not in wanted:
        chosen = ", ".join(wanted) or "none"
        problems.lines.append(f"--set {text}: policy {policy} is not simulated here ({chosen})")
        return
    names = [policy] if dot else [name for name in wanted if option in option_names(name)]
    for name in names or list(wanted)[:1]:  # an option that no policy knows is refused by the first
        wanted[name][option] = document.data


# ---------------------------------------------------------------- values


def _atoms(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_ATOMS:
        raise ValueError(f"'{text}' is not a number of atoms from 1 to {MAX_ATOMS}")
    return int(text)


def _scaling(text: str) -> str:
    text = text.replace(";", ",")
    parse_scaling(text)
    return text


def _tables(text: str) -> str:
    """The commas of a table (``2:1.9,4:3.6``) separate its points, not values of the grid."""
    parts: list[str] = []
    for part in text.split(","):
        joins = parts and ":" in part and ":" in parts[-1]
        if joins:
            parts[-1] += f";{part}"
        else:
            parts.append(part)
    return ",".join(parts)


def _delay(text: str) -> tuple[float, bool] | None:
    """(value, whether it is a share of the deadline); None where none is given."""
    if not text:
        return None
    number = text.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"'{text}' is not a delay; write seconds (0.5) or a share (5%)") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be 0 or more, not {text}")
    return (value / 100, True) if text.endswith("%") else (value, False)


def _delays(workload: Workload, delay: tuple[float, bool] | None, deadline_s: float) -> Delays:
    recorded = getattr(workload, "delays", None)
    if delay is None:
        return recorded if isinstance(recorded, Delays) else Delays()
    value, is_share = delay
    seconds = value * deadline_s if is_share else value
    return Delays(launch_s=seconds, resize_s=seconds)

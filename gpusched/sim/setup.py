"""One simulated run (``Setup``), and the experiment and the machine that are made of it.

The experiment is assembled from a recipe like a live one, so that a simulated experiment's folder is a complete one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched import policies
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.driver.assemble import make_experiment, rules
from gpusched.recipe.recipe import Recipe
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Delays, Faults, Incident, Noise, parse_scaling
from gpusched.sim.workload import Workload, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run. Everything in it is plain and can be sent to another process. Times in virtual seconds.

    ``scaling`` is the truth, as on the command line; ``assumed`` what the scheduler is told (None: the truth;
    ``auto``: it learns).
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
    faults: Faults = field(default_factory=Faults)
    incidents: tuple[Incident, ...] = ()
    max_atoms: int | None = None
    sizes: tuple[int, ...] = ()
    max_trials: int | None = None
    sampler: str = "random"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    #: The pool is rented, ``instance`` atoms at once, up to ``atoms``; else all of them are paid for till the end.
    elastic: bool = False
    instance: int = 1
    #: Of an instance-hour, in any currency.
    price: float = 0.0
    #: A name for what is varied, carried through to the result.
    label: str = ""

    def load(self) -> Workload:
        return load_workload(self.workload)


def recipe(setup: Setup) -> Recipe:
    """Return the recipe that a live experiment of this kind would have."""
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
        max_failures=1_000_000 if setup.faults.crash else 3,
        target=setup.target,
    )


def complete_options(policy: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the policy: those wanted that it has, the defaults of the others."""
    kind = policies.options_type(policy)
    known = {item.name for item in dataclasses.fields(kind)}
    return dataclasses.asdict(kind(**{key: wanted[key] for key in wanted if key in known}))


def quiet(setup: Setup) -> dict[str, Any]:
    """Return fields of ``Rules`` in which a simulated experiment differs from a live one.

    The watchdog is off unless hangs are asked for. ``best_every_s`` spares a real disk; here a save costs what
    ``Delays`` says.
    """
    hangs = setup.faults.hang > 0 or any(incident.kind == "hang" for incident in setup.incidents)
    return {"watch": hangs, "best_every_s": 0.0, "save_every_s": None}


def rules_of(setup: Setup, of: Recipe) -> Rules:
    return dataclasses.replace(rules(of), **quiet(setup))


def experiment(setup: Setup, of: Recipe) -> Experiment:
    return make_experiment(of, rules_of(setup, of))


def policy_problems(setup: Setup, of: Recipe) -> Iterator[tuple[str, str]]:
    """Yield problems of the policy's options in this situation: (option, message)."""
    policy = policies.make(of.policy_name, of.policy_options)
    return policy.problems(rules_of(setup, of), setup.atoms)


def foreword(setup: Setup) -> Sequence[str]:
    """Return what a person should know before the run starts."""
    of = recipe(setup)
    policy = policies.make(of.policy_name, of.policy_options)
    return policy.foreword(rules_of(setup, of), setup.atoms)


def machine(setup: Setup) -> SimExecutor:
    return SimExecutor(
        setup.load(),
        setup.atoms,
        scaling=parse_scaling(setup.scaling)[1],
        delays=setup.delays,
        noise=setup.noise,
        faults=setup.faults,
        incidents=setup.incidents,
        seed=setup.seed,
        instance=setup.instance if setup.elastic else None,
    )

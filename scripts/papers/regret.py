"""The figure that the papers do not have: all policies on one grid, and their regret to an oracle.

The oracle knows the best configuration among those that a policy could have drawn (the first M of the sequence, M being
the most that any policy drew in that situation) and gives it all atoms from the start. Regret is its score less the
policy's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpusched.sim.physics import Delays, parse_scaling
from gpusched.sim.setup import Setup, recipe
from gpusched.sim.study import Mean, Result
from papers import study
from papers.study import BOUNDS, STEPS, Study, best

SEEDS = 6
#: Options beyond HyperSched's r, R and eta. Quanta, stages and boundaries are cut to the short deadlines of the grid.
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {},
    "asha": {},
    "bandit": {"b": 10},
    "earlyterm": {"b": 30, **BOUNDS},
    "pop": {"b": 30, **BOUNDS},
    "seer": {},
    "hermes": {"quantum_s": 1.0},
    "hypersched": {},
    "foresight": {},
}
DIMENSIONS = ("atoms", "deadline", "scaling", "share")


def setups(quick: bool) -> list[Setup]:
    atoms, deadlines = ((4,), (15,)) if quick else ((4, 8, 32), (10, 40, 120))
    scalings, shares = (("linear",), (0.05,)) if quick else (("linear", "sqrt", "none"), (0.0, 0.1))
    return [
        Setup(
            policy=policy,
            options={**STEPS, **options},
            atoms=n,
            deadline_s=float(deadline),
            scaling=scaling,
            delays=Delays(launch_s=share * deadline, resize_s=share * deadline),
            seed=seed,
        )
        for n in atoms
        for deadline in deadlines
        for scaling in scalings
        for share in shares
        for seed in range(2 if quick else SEEDS)
        for policy, options in POLICIES.items()
    ]


Place = tuple[int, float, str, float, int]


def _place(result: Result) -> Place:
    return (result.atoms, result.deadline, result.scaling, result.delay, result.seed)


def oracle(place: Place, trials: int) -> float:
    """The best of the first so many configurations, trained on all atoms from the start, to R at most."""
    atoms, deadline, scaling, delay, seed = place
    setup = Setup(seed=seed)
    workload, draw = setup.load(), recipe(setup).configurations().sample
    step_s = 0.1 / parse_scaling(scaling)[1](atoms)
    steps = min(STEPS["R"], math.floor((deadline - delay) / step_s + 1e-9))
    scores = [workload.curve(n, draw(n) or {}, seed).metric(int(steps)) for n in range(trials)]
    return max(scores) if steps > 0 else 0.0


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "regret", "Mean regret to an oracle over the grid (Score(k), 95% intervals)"
    drawn: dict[Place, int] = {}
    for result in results:
        drawn[_place(result)] = max(drawn.get(_place(result), 1), result.trials)
    perfect = {place: oracle(place, trials) for place, trials in drawn.items()}
    regrets = [
        {
            "policy": result.policy,
            "atoms": result.atoms,
            "deadline": result.deadline,
            "scaling": result.scaling,
            "share": round(result.delay / result.deadline, 4),
            "regret": perfect[_place(result)] - best(result),
        }
        for result in results
    ]
    found = [*_means(regrets, ()), *(p for key in DIMENSIONS for p in _means(regrets, (key,)))]
    study.write(folder, name, title, found)
    overall = sorted(_means(regrets, ()), key=lambda point: point["regret"])
    mean = Mean.of(perfect.values()).mean
    said = [f"{p['policy']} {p['regret']:.3f} ± {p['half_width']:.3f}" for p in overall]
    return [
        f"regret to the oracle (whose mean score is {mean:.3f}):",
        *(f"  {line}" for line in said),
    ]


def _means(regrets: Iterable[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[float]] = {}
    for regret in regrets:
        key = (regret["policy"], *(regret[name] for name in keys))
        groups.setdefault(key, []).append(regret["regret"])
    found = []
    for (policy, *values), group in groups.items():
        mean = Mean.of(group)
        over = dict(zip(keys, values, strict=True))
        point = {"policy": policy, **over, "runs": mean.count, "regret": round(mean.mean, 4)}
        found.append({**point, "half_width": round(mean.half_width, 4)})
    return found


STUDIES = [Study("regret", setups, draw)]

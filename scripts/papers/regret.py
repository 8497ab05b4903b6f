"""The figure that the papers do not have: all policies on one grid, and their regret to an oracle.

The oracle knows the best configuration among those that a policy could have drawn (the first M of the sequence, M being
the most that any policy drew in that situation) and gives it all atoms from the start. Regret is its score less the
policy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    regrets: dict[str, list[float]] = {}
    for result in results:
        behind = perfect[_place(result)] - best(result)
        regrets.setdefault(result.policy, []).append(behind)
    found = []
    for policy, group in regrets.items():
        mean = Mean.of(group)
        point = {"policy": policy, "runs": mean.count, "regret": round(mean.mean, 4)}
        found.append({**point, "half_width": round(mean.half_width, 4)})
    study.write(folder, name, title, found)
    found.sort(key=lambda point: point["regret"])
    said = [f"  {p['policy']} {p['regret']:.3f} ± {p['half_width']:.3f}" for p in found]
    mean = Mean.of(perfect.values())
    return [f"regret to the oracle (whose mean score is {mean.mean:.3f}):", *said]


STUDIES = [Study("regret", setups, draw)]

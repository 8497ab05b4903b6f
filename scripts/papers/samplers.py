"""Figure ``samplers``: do suggestions that learn help under policies that stop early? Functions of hyperparameters.

Without Optuna there is ``random`` alone. All share 4 atoms and R 60; a search draws some 60 configurations, the first
10 of which are random and the same for every sampler.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpusched.sim.setup import Setup
from gpusched.sim.study import Result, simulate
from papers import study
from papers.study import Study

DEADLINE_S = 12.0
FUNCTIONS = ("network", "ridge")
#: Seeds of each sampler.
SAMPLERS = {"random": 20, "tpe": 20}
POLICIES = ("asha", "hypersched", "foresight")
HERE = Path(__file__).parent


def setups(quick: bool) -> list[Setup]:
    return [
        Setup(
            policy=policy,
            options={"r": 2, "R": 60, "eta": 4.0, "metric_max": 1.0},
            workload=f"{HERE}/functions.py:{function}",
            atoms=4,
            deadline_s=DEADLINE_S,
            seed=seed,
            sampler=sampler,
            sampler_options={} if sampler == "random" else {"startup": 10},
            label=f"{function} {sampler}",
        )
        for sampler, seeds in SAMPLERS.items()
        if sampler == "random" or find_spec("optuna")
        for seed in range(min(2, seeds) if quick else seeds)
        for function in FUNCTIONS
        for policy in POLICIES
    ]


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    """Return a row a function and policy: mean best score, standard error, and the gain over random by seed."""
    best: dict[tuple[str, str, str], dict[int, float]] = {}
    for result in results:
        function, sampler = result.label.split()
        best.setdefault((function, result.policy, sampler), {})[result.seed] = study.best(result)
    rows: list[dict[str, Any]] = []
    names = [name for name in SAMPLERS if (FUNCTIONS[0], POLICIES[0], name) in best]
    head = ["function", "policy", *names, *(f"{name} - random" for name in names[1:])]
    said = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for function in FUNCTIONS:
        for policy in POLICIES:
            found = {name: best[function, policy, name] for name in names}
            row: dict[str, Any] = {"function": function, "policy": policy}
            cells = []
            for name, values in found.items():
                mean, error = _mean(list(values.values()))
                row |= {name: mean, f"{name}_error": error, f"{name}_seeds": len(values)}
                cells.append(f"{mean:.4f} ± {error:.4f}")
            for name in names[1:]:
                random = found["random"]
                mean, error = _mean([value - random[seed] for seed, value in found[name].items()])
                row |= {f"{name}_gain": mean, f"{name}_gain_error": error}
                cells.append(f"{mean:+.4f} ± {error:.4f}")
            rows.append(row)
            said.append(f"| {function} | {policy} | " + " | ".join(cells) + " |")
    study.write(folder, "samplers", "best score at the deadline, standard errors", rows)
    return said


def _mean(values: list[float]) -> tuple[float, float]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return round(statistics.fmean(values), 5), round(error, 5)


STUDIES = [Study("samplers", setups, draw, simulate)]

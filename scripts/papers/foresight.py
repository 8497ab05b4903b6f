"""Figure ``foresight``: is the policy ahead of every other one, on every kind of workload?

Every fifth situation of figure ``regret``'s grid, and four of each other workload: two numbers of atoms by two
deadlines, half of them with linear scaling and launches at once, half with square-root scaling and launches that take
5% of the deadline. A *cell* is a situation, its value the mean over seeds. All policies meet the same configurations;
each situation draws its own. The policy's rules and constants were chosen with a look at all workloads but those
``HELD_OUT``, of which only earlier figures were known.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.sim.physics import Delays, Noise, parse_scaling
from gpusched.sim.setup import Setup, recipe
from gpusched.sim.study import Mean, Result, simulate
from papers import study
from papers.study import BOUNDS, Study

SEEDS = 10
HERE = Path(__file__).parent
RIVALS: dict[str, dict[str, Any]] = {
    "hypersched": {},
    "asha": {},
    "fifo": {},
    "pop": {"predictor": "shapes", **BOUNDS},
    "seer": {},
    "hermes": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A workload, the options that suit it, and its situations."""

    workload: str
    options: dict[str, Any]
    atoms: tuple[int, ...] = (4, 16)
    deadlines: tuple[float, ...] = (15.0, 60.0)
    #: Scalings, each with the shares of the deadline that a launch takes.
    ways: tuple[tuple[str, float], ...] = (("linear", 0.0), ("sqrt", 0.05))
    noise: float = 0.0
    #: What POP normalises by; the others are told the bounds only where ``options`` has them.
    bounds: tuple[float, float] = (0.0, 1.0)


def _kinds() -> dict[str, Kind]:
    grid: dict[str, Any] = {
        "atoms": (4, 8, 32),
        "deadlines": (10.0, 40.0, 120.0),
        "ways": tuple(itertools.product(("linear", "sqrt", "none"), (0.0, 0.1))),
    }
    steps, known = {"r": 5, "R": 500}, {"metric_max": 1.0}
    kinds = {
        "synthetic": Kind(workload="synthetic", options={**steps, **known}, **grid),
        "noisy": Kind(workload="synthetic", options={**steps, **known}, noise=0.03),
    }
    hard = (
        "slow",
        "takeoff",
        "overfit",
        "rare",
        "equal",
        "plateau",
        "crossing",
        "stairs",
        "copies",
    )
    for name in hard:
        kinds[name] = Kind(workload=f"{HERE}/hard.py:{name}", options={"R": 500, **known})
    kinds["reward"] = Kind(
        workload=f"{HERE}/hard.py:reward", options={"R": 500}, bounds=(-500.0, 4000.0)
    )
    kinds["loss"] = Kind(workload=f"{HERE}/hard_min.py:loss", options={"R": 500}, bounds=(0.0, 7.0))
    for name in ("digits", "clusters", "boosting", "linear", "recorded"):
        kinds[name] = Kind(
            workload=f"{HERE}/real.py:{name}",
            options={"R": 60 if name == "recorded" else 80, **known},
            deadlines=(30.0, 120.0),
        )
    return kinds


KINDS = _kinds()
HELD_OUT = ("stairs", "copies", "reward", "linear")


def situations(kind: Kind) -> list[dict[str, Any]]:
    every = [
        {
            "workload": kind.workload,
            "atoms": atoms,
            "deadline_s": deadline,
            "scaling": scaling,
            "delays": Delays(launch_s=share * deadline, resize_s=share * deadline),
            "noise": Noise(metric=kind.noise),
        }
        for atoms, deadline, (scaling, share) in itertools.product(
            kind.atoms, kind.deadlines, kind.ways
        )
    ]
    return every[::5] if len(every) > 8 else [every[n] for n in (0, 3, 5, 6)]


def options(policy: str, kind: Kind) -> dict[str, Any]:
    low, high = kind.bounds
    bounds = {"metric_min": low, "metric_max": high} if policy == "pop" else {}
    # Quanta and boundaries are cut to the deadlines, as for figure ``regret``.
    step_s = 1.0 if "real.py" in kind.workload else 0.1
    cut = {"b": 30 if kind.options["R"] == 500 else 10, "quantum_s": 10 * step_s}
    own = RIVALS.get(policy, {})
    return {**kind.options, **own, **(cut if policy in ("pop", "hermes") else {}), **bounds}


def setups(quick: bool) -> list[Setup]:
    kinds = {name: KINDS[name] for name in ("takeoff", "digits")} if quick else KINDS
    return [
        Setup(
            policy=policy,
            options=options(policy, kind),
            seed=seed + 1000 * n,
            label=name,
            **situation,
        )
        for name, kind in kinds.items()
        for n, situation in enumerate(situations(kind)[: 2 if quick else None])
        for seed in range(2 if quick else SEEDS)
        for policy in (*RIVALS, "foresight")
    ]


Place = tuple[str, int, float, str, float]


def place(result: Result) -> Place:
    return (result.label, result.atoms, result.deadline, result.scaling, result.delay)


@functools.cache
def _best_so_far(label: str, seed: int, trial: int) -> list[float]:
    """The best score of a configuration up to each step, from step 0 on."""
    kind = KINDS[label]
    setup = Setup(workload=kind.workload, seed=seed)
    workload = setup.load()
    sign = 1.0 if workload.mode == "max" else -1.0
    curve = workload.curve(trial, _draws(kind.workload, seed)(trial) or {}, seed)
    best, found = -math.inf, [-math.inf]
    for step in range(1, kind.options["R"] + 1):
        value = curve.metric(step) * sign
        best = value if value > best else best
        found.append(best)
    return found


@functools.cache
def _draws(workload: str, seed: int) -> Any:
    return recipe(Setup(workload=workload, seed=seed)).configurations().sample


def oracle(at: Place, seed: int, trials: int) -> float:
    """The best of the first so many configurations, as a score, on all atoms from the start."""
    label, atoms, deadline, scaling, delay = at
    step_s = 1.0 if "real.py" in KINDS[label].workload else 0.1
    step_s /= parse_scaling(scaling)[1](atoms)
    steps = min(KINDS[label].options["R"], math.floor((deadline - delay) / step_s + 1e-9))
    return max(_best_so_far(label, seed, trial)[steps] for trial in range(max(1, trials)))


def score(result: Result) -> float:
    """More is better; without any model, as bad as the scale of the workload has it."""
    kind = KINDS[result.label]
    is_min = "hard_min" in kind.workload
    if result.best is None:
        return -kind.bounds[1] if is_min else kind.bounds[0]
    return -result.best if is_min else result.best


def cells(results: Sequence[Result]) -> dict[Place, dict[str, list[float]]]:
    """The regrets of each policy in each cell, one a seed, as shares of the workload's range."""
    drawn: dict[tuple[Place, int], int] = {}
    for result in results:
        key = (place(result), result.seed)
        drawn[key] = max(drawn.get(key, 1), result.trials)
    found: dict[Place, dict[str, list[float]]] = {}
    for result in results:
        at = place(result)
        low, high = KINDS[result.label].bounds
        perfect = oracle(at, result.seed, drawn[at, result.seed])
        regret = (perfect - score(result)) / (high - low)
        found.setdefault(at, {}).setdefault(result.policy, []).append(regret)
    return found


def table(results: Sequence[Result], policy: str = "foresight") -> list[dict[str, Any]]:
    """One row a workload: mean regrets, and in how many cells the policy is ahead, level (0.001), behind of all."""
    rows = []
    by_kind: dict[str, list[dict[str, list[float]]]] = {}
    for at, of in cells(results).items():
        by_kind.setdefault(at[0], []).append(of)
    for name, group in by_kind.items():
        names = list(group[0])
        means = {p: Mean.of([value for of in group for value in of[p]]) for p in names}
        best = min((p for p in names if p != policy), key=lambda p: means[p].mean)
        mine = [
            [Mean.of(of[p]).mean for p in names if p != policy] + [Mean.of(of[policy]).mean]
            for of in group
        ]
        gap = Mean.of([a - b for of in group for a, b in zip(of[policy], of[best], strict=True)])
        rows.append(
            {
                "workload": name,
                "held_out": name in HELD_OUT,
                "runs": means[policy].count,
                **{p: round(means[p].mean, 4) for p in names},
                "best_other": best,
                "behind": round(gap.mean, 4),
                "half_width": round(gap.half_width, 4),
                "cells": len(group),
                "ahead_or_level": sum(row[-1] <= min(row[:-1]) + 0.001 for row in mine),
            }
        )
    return rows


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "foresight", "foresight against six policies: mean regret to an oracle"
    rows = table(results)
    study.write(folder, name, title, rows)
    _picture(rows, folder, name, title)
    every = sum(row["cells"] for row in rows)
    good = sum(row["ahead_or_level"] for row in rows)
    names = ("foresight", *RIVALS)
    said = ["| workload | " + " | ".join(names) + " | behind the best other | cells |"]
    said.append("| --- |" + " --- |" * (len(names) + 2))
    for row in rows:
        figures = " | ".join(f"{row[p]:.3f}" for p in names)
        mark = " (held out)" if row["held_out"] else ""
        gap = f"{row['behind']:+.3f} ± {row['half_width']:.3f} ({row['best_other']})"
        said.append(
            f"| {row['workload']}{mark} | {figures} | {gap} | {row['ahead_or_level']} of {row['cells']} |"
        )
    return [
        *said,
        f"ahead of or level with all of them in {good} of {every} cells ({good / every:.0%})",
    ]


def _picture(rows: Sequence[dict[str, Any]], folder: Path, name: str, title: str) -> None:
    figure, (axes,) = study.panels(1, width=9.0, height=3.4)
    for n, policy in enumerate(("foresight", *RIVALS)):
        axes.plot(
            [row["workload"] for row in rows],
            [row[policy] for row in rows],
            "o" if policy == "foresight" else "_",
            markersize=7 if policy == "foresight" else 12,
            color=f"C{n}",
            label=policy,
        )
    axes.tick_params("x", rotation=60)
    axes.set_ylabel("regret")
    axes.legend(fontsize="x-small", ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    study.save(figure, folder, name, title)


STUDIES = [
    Study("foresight", "foresight against six policies on 18 workloads", setups, draw, simulate)
]

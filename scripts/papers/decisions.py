"""Figure ``decisions``: policies judged by curves of real training, on a simulated schedule.

Six tasks were trained once for 64 configurations each (``real.py``). Here searches run over these curves on 8 atoms:
a step of the median configuration takes 1 s on one atom, more atoms are faster as for HyperSched's ResNet-50, a launch
takes half a second. *Regret* is the best metric on disk at the deadline less that of an oracle, which gives the best of
all 64 configurations all atoms from the start, as a share of the distance from the best configuration, fully trained,
to the median one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpusched.sim.physics import Delays, parse_scaling
from gpusched.sim.setup import Setup
from gpusched.sim.study import Mean, Result
from papers import real, study
from papers.study import Study

TASKS = real.TASKS
SEEDS, ATOMS, DEADLINES = 10, 8, (60.0, 180.0)
SCALING, LAUNCH_S = "resnet50", 0.5
#: The values that the metric can have, which ``pop`` asks for.
MOST = {"tabular": 3.0, "autoencoder": 0.3, "adding": 2.0, "charlm": 9.0}
ONE_EPOCH = f"{Path(__file__).with_name('one_epoch.py')}:OneEpoch"
#: Label, policy and options beside R.
POLICIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("hypersched", "hypersched", {"r": 1}),
    ("hypersched r=2", "hypersched", {"r": 2}),
    ("hypersched r=4", "hypersched", {"r": 4}),
    ("hypersched r=8", "hypersched", {"r": 8}),
    ("asha", "asha", {"r": 1}),
    ("asha r=4", "asha", {"r": 4}),
    ("foresight", "foresight", {}),
    ("pop", "pop", {"b": 5, "metric_min": 0.0}),
    ("one epoch", ONE_EPOCH, {}),
    ("fifo", "fifo", {}),
)


def situation(task: str) -> dict[str, Any]:
    """Return what all searches of a task share."""
    return {
        "workload": f"{Path(__file__).with_name('real.py')}:{task}",
        "options": {"R": real.STEPS},
        "scaling": SCALING,
        "delays": Delays(launch_s=LAUNCH_S, resize_s=LAUNCH_S, save_s=0.05),
    }


def setups(quick: bool) -> list[Setup]:
    found = []
    for task in TASKS[:2] if quick else TASKS:
        shared = situation(task)
        bounds = {"metric_max": MOST.get(task, 1.0)}
        for deadline_s in DEADLINES[:1] if quick else DEADLINES:
            for label, policy, own in POLICIES:
                options = {**shared["options"], **own, **(bounds if policy == "pop" else {})}
                for seed in range(2 if quick else SEEDS):
                    about = {**shared, "options": options, "label": f"{task}/{label}"}
                    about |= {"policy": policy, "atoms": ATOMS, "deadline_s": deadline_s}
                    found.append(Setup(seed=seed, **about))
    return found


@functools.cache
def yardstick(task: str, deadline_s: float) -> tuple[float, float, float]:
    """Return the oracle's metric at the deadline, the scale of regret, and the worst that a search can end with."""
    speed = parse_scaling(SCALING)[1](ATOMS)
    ends, reachable = [], []
    for curve, step_s in real.curves(task):
        finite = [value for value in curve if math.isfinite(value)]
        ends.append(min(finite, default=math.inf))
        steps = int((deadline_s - LAUNCH_S) * speed / step_s)
        reachable.append(min([v for v in curve[:steps] if math.isfinite(v)], default=math.inf))
    best, middle = min(ends), statistics.median(ends)
    return min(reachable), middle - best, max(value for value in ends if math.isfinite(value))


def regret(result: Result) -> float:
    oracle, scale, worst = yardstick(result.label.partition("/")[0], result.deadline)
    return ((worst if result.best is None else result.best) - oracle) / scale


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    regrets: dict[tuple[str, float], dict[str, list[float]]] = {}
    for result in results:
        task, _, policy = result.label.partition("/")
        cell = regrets.setdefault((task, result.deadline), {})
        cell.setdefault(policy, []).append(regret(result))
    names = list(dict.fromkeys(name for cell in regrets.values() for name in cell))
    means = {at: {p: statistics.fmean(of[p]) for p in names} for at, of in regrets.items()}
    rows, cells = list[dict[str, Any]](), [f"{task} {s:g} s" for task, s in regrets]
    said = [
        f"| policy | mean | worst gap | {' | '.join(cells)} |",
        "| --- " * (len(cells) + 3) + "|",
    ]
    for name in names:
        # Seeds differ in the order of configurations alone: the interval is over seeds of the mean over cells.
        by_seed = zip(*(of[name] for of in regrets.values()), strict=True)
        mean = Mean.of(map(statistics.fmean, by_seed))
        gaps = {at: means[at][name] - min(means[at].values()) for at in regrets}
        worst = max(gaps, key=gaps.__getitem__)
        row = {"policy": name, "regret": round(mean.mean, 4)}
        row |= {"half_width": round(mean.half_width, 4), "worst_gap": round(gaps[worst], 4)}
        row |= {"worst_at": f"{worst[0]} {worst[1]:g} s"}
        row |= {cell: round(means[at][name], 4) for cell, at in zip(cells, regrets, strict=True)}
        rows.append(row)
        each = " | ".join(f"{means[at][name]:.2f}" for at in regrets)
        gap = f"{gaps[worst]:.2f} ({row['worst_at']})"
        said.append(f"| {name} | {mean.mean:.3f} ± {mean.half_width:.3f} | {gap} | {each} |")
    study.write(folder, "decisions", "Mean regret on curves of real training", rows)
    return said


STUDIES = [Study("decisions", "policies on curves of real training", setups, draw)]

"""Figures ``decisions`` and ``decisions-held-out``, ``-unseen``, ``-two``: policies judged on a simulated schedule.

``decisions``: six tasks were trained once for 64 configurations each (``real.py``), and searches run over these curves
on 8 atoms: a step of the median configuration takes 1 s on one atom, more atoms are faster as for HyperSched's
ResNet-50, a launch takes half a second. ``-held-out`` has six other tasks, recorded when the policies were done
(``held_out.py``), ``-unseen`` ten made-up ones by an author who had seen no policy (``unseen.py``), ``-two`` the first
six on two atoms that gain nothing from each other, as two threads of one core. *Regret* is the best metric on disk at
the deadline less that of an oracle, which gives the best of all 64 configurations all atoms from the start, as a share
of the distance from the best configuration, fully trained, to the median one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.sim.physics import Delays, parse_scaling
from gpusched.sim.setup import Setup
from gpusched.sim.study import Mean, Result
from papers import held_out, real, study, unseen
from papers.study import Study

SEEDS = 10
ONE_EPOCH = f"{Path(__file__).with_name('one_epoch.py')}:OneEpoch"
#: Label, policy and options beside R; ``pop`` is told between which values the metric lies.
POLICIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("hypersched", "hypersched", {"r": 1}),
    ("hypersched r=2", "hypersched", {"r": 2}),
    ("hypersched r=4", "hypersched", {"r": 4}),
    ("hypersched r=8", "hypersched", {"r": 8}),
    ("asha", "asha", {"r": 1}),
    ("asha r=2", "asha", {"r": 2}),
    ("asha r=4", "asha", {"r": 4}),
    ("foresight", "foresight", {}),
    ("pop", "pop", {"b": 5}),
    ("one epoch", ONE_EPOCH, {}),
    ("fifo", "fifo", {}),
)


@dataclass(frozen=True)
class Suite:
    """Tasks, each with the curves of 64 configurations, and the box on which searches run over them."""

    name: str
    title: str
    module: Any
    """Has ``TASKS``, ``STEPS``, the workloads, and ``curves(task)`` like ``real``; less is better."""
    atoms: int = 8
    scaling: str = "resnet50"
    schedules: tuple[tuple[float, float], ...] = ((60.0, 0.5), (180.0, 0.5))
    """Deadlines, and how long a launch takes, in seconds."""

    def situation(self, task: str, launch_s: float) -> dict[str, Any]:
        """Return what all searches of a task share."""
        return {
            "workload": f"{self.module.__file__}:{task}",
            "options": {"R": self.module.STEPS},
            "scaling": self.scaling,
            "atoms": self.atoms,
            "delays": Delays(launch_s=launch_s, resize_s=launch_s, save_s=0.05),
        }


SUITES = (
    Suite("decisions", "curves of real training", real),
    Suite("decisions-held-out", "curves recorded afterwards", held_out),
    Suite("decisions-unseen", "made-up curves of another author", unseen),
    Suite(
        "decisions-two",
        "two atoms that gain nothing from each other",
        real,
        atoms=2,
        scaling="none",
        schedules=((180.0, 0.5), (480.0, 4.0)),
    ),
)


def setups(suite: Suite, quick: bool) -> list[Setup]:
    found = []
    for task in suite.module.TASKS[: 2 if quick else None]:
        values = [v for curve, _ in suite.module.curves(task) for v in curve if math.isfinite(v)]
        bounds = {"metric_min": min(values), "metric_max": max(values)}
        for deadline_s, launch_s in suite.schedules[: 1 if quick else None]:
            shared = suite.situation(task, launch_s)
            for label, policy, own in POLICIES:
                options = {**shared["options"], **own}
                options |= bounds if policy == "pop" else {}
                about = {**shared, "options": options, "label": f"{task}/{label}"}
                about |= {"policy": policy, "deadline_s": deadline_s}
                found += [Setup(seed=seed, **about) for seed in range(2 if quick else SEEDS)]
    return found


@functools.cache
def _yardstick(suite: Suite, task: str, deadline_s: float) -> tuple[float, float, float]:
    """Return the oracle's metric at the deadline, the scale of regret, and the worst that a search can end with."""
    speed = parse_scaling(suite.scaling)[1](suite.atoms)
    train_s = deadline_s - dict(suite.schedules)[deadline_s]
    ends, reachable = [], []
    for curve, step_s in suite.module.curves(task):
        finite = [value for value in curve if math.isfinite(value)]
        ends.append(min(finite, default=math.inf))
        in_time = curve[: int(train_s * speed / step_s)]
        reachable.append(min([v for v in in_time if math.isfinite(v)], default=math.inf))
    best, middle = min(ends), statistics.median(ends)
    return min(reachable), middle - best, max(value for value in ends if math.isfinite(value))


def regret(suite: Suite, result: Result) -> float:
    task = result.label.partition("/")[0]
    oracle, scale, worst = _yardstick(suite, task, result.deadline)
    return ((worst if result.best is None else result.best) - oracle) / scale


def draw(suite: Suite, results: Sequence[Result], folder: Path) -> list[str]:
    regrets: dict[tuple[str, float], dict[str, list[float]]] = {}
    for result in results:
        task, _, policy = result.label.partition("/")
        cell = regrets.setdefault((task, result.deadline), {})
        cell.setdefault(policy, []).append(regret(suite, result))
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
    study.write(folder, suite.name, f"Mean regret on {suite.title}", rows)
    return said


STUDIES = [Study(suite.name, partial(setups, suite), partial(draw, suite)) for suite in SUITES]

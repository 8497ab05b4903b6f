"""ASHA (2018), figure 1: the brackets of asynchronous successive halving with many workers, over time.

"We set the minimum resource to r = R eta^-4, leading to 5 possible brackets": bracket 0 stops most aggressively,
bracket 4 is random search. The paper trains LSTMs with 500 workers and shows one trial of each; here Score(k) on 100
atoms. Time in units of time(R).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

from gpusched.sim.setup import Setup
from gpusched.sim.study import Mean, Result
from papers import study
from papers.study import Study

R, ETA, BRACKETS = 256, 4.0, 5
#: time(R): steps of 0.1 units.
UNIT = 0.1 * R
MULTIPLES = (0.5, 1, 2, 3, 5, 7, 10)
SEEDS = 3


def setups(quick: bool) -> list[Setup]:
    return [
        Setup(
            policy="asha",
            # Bracket s has its first rung at r * eta^s.
            options={"r": int(ETA**rate), "R": R, "eta": ETA},
            atoms=20 if quick else 100,
            deadline_s=(2 if quick else MULTIPLES[-1]) * UNIT,
            seed=seed,
            label=f"bracket {rate}",
        )
        for seed in range(2 if quick else SEEDS)
        for rate in range(BRACKETS)
    ]


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "asha-1", "ASHA figure 1: brackets on 100 atoms, Score(k)"
    times = [multiple for multiple in MULTIPLES if multiple * UNIT <= results[0].deadline]
    found = []
    for label in dict.fromkeys(result.label for result in results):
        runs = [result for result in results if result.label == label]
        trials = Mean.of(result.trials for result in runs).mean
        for multiple in times:
            score = Mean.of(_best_by(run, multiple * UNIT) for run in runs)
            point = {"label": label, "time": multiple, "seeds": len(runs), "trials": trials}
            widths = {"score": round(score.mean, 4), "score_half_width": round(score.half_width, 4)}
            found.append({**point, **widths})
    study.write(folder, name, title, found)
    head = " | ".join(f"{multiple:g} R" for multiple in times)
    said = [f"| bracket (configurations) | {head} |", "| --- " * (len(times) + 1) + "|"]
    for label in dict.fromkeys(point["label"] for point in found):
        here = [point for point in found if point["label"] == label]
        scores = " | ".join(f"{p['score']:.3f} ± {p['score_half_width']:.3f}" for p in here)
        said.append(f"| {label} ({here[0]['trials']:.0f}) | {scores} |")
    return said


def _best_by(run: Result, at: float) -> float:
    place = bisect.bisect_right(run.history, (at, float("inf")))
    return run.history[place - 1][1] if place else 0.0


STUDIES = [Study("asha-1", setups, draw)]

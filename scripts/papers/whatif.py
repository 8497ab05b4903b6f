"""Figure ``whatif``: do the intervals of ``gpusched whatif`` hold what came?

Searches of the real tasks of figure ``decisions`` and of Score(k) are recorded, cut at 25, 50 and 75% of the deadline,
and asked for the best score at the deadline from what was known then.
*Coverage*: share of the 80% intervals that hold the true one; *bias*: mean of prediction less truth, in mean widths of
an interval. The truth of ``more`` (a third more time) is the same search, gone on with from the cut on its own true
curves.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kept import simulate_into

from gpusched.folder.paths import ExperimentPaths
from gpusched.sim.continuing import Recorded
from gpusched.sim.physics import SimulatedCurve
from gpusched.sim.setup import Setup
from gpusched.sim.study import Mean
from gpusched.sim.whatif import AskedSearch
from papers import decisions, real, study
from papers.study import Study

CUTS = (0.25, 0.5, 0.75)
SEEDS = 10
POLICIES = ("hypersched", "asha")
TINY = 1e-9


def setups(quick: bool) -> list[Setup]:
    return [
        _setup(name, seed)
        for name in ("synthetic", *real.TASKS[: 1 if quick else None])
        for seed in range(2 if quick else SEEDS)
    ]


def _setup(name: str, seed: int) -> Setup:
    policy = POLICIES[seed % len(POLICIES)]
    more = {"atoms": 4, "deadline_s": 15.0}
    if name != "synthetic":
        (deadline_s, launch_s), *_ = decisions.SUITES[0].schedules
        more = {"deadline_s": deadline_s, **decisions.SUITES[0].situation(name, launch_s)}
    return Setup(policy=policy, seed=seed, label=name, **more)


class Known:
    """The workload as it was recorded."""

    def __init__(self, setup: Setup) -> None:
        self._of, self._setup = setup.load(), setup
        self.metric, self.mode = self._of.metric, self._of.mode
        self.space, self.defaults = self._of.space, self._of.defaults

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        return self._of.curve(trial, hparams, self._setup.seed)


def work(setup: Setup) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="gpusched-whatif-") as runs:
        result, folder = simulate_into(Path(runs), setup)
        found, recorded = [], Recorded(ExperimentPaths(folder))
        for cut in CUTS:
            search = AskedSearch(recorded.until(cut * setup.deadline_s))
            more_s = setup.deadline_s / 3
            truth = search.under(Known(setup))
            later = search.under(Known(setup), more_s)
            now, then = search.ask([more_s])
            more = (later - truth) * search.state.rules.sign
            about = {"best": (result.best, now.best), "more": (more, then.gain)}
            found.append({"workload": setup.label, **about})
    return found


def table(results: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for found in results:
        for one in found:
            by_kind.setdefault(one["workload"], []).append(one)
    for name, group in by_kind.items():
        row: dict[str, Any] = {"workload": name, "predictions": len(group)}
        for what in ("best", "more"):
            told = [one[what] for one in group]
            held = [said.low - TINY <= truth <= said.high + TINY for truth, said in told]
            width = Mean.of(said.high - said.low for _, said in told).mean
            bias = Mean.of(said.median - truth for truth, said in told).mean
            row |= {
                f"{what}_coverage": round(sum(held) / len(held), 3),
                f"{what}_width": float(f"{width:.3g}"),
                f"{what}_bias": round(bias / width, 3) if width else math.nan,
            }
        rows.append(row)
    return rows


def draw(results: Sequence[list[dict[str, Any]]], folder: Path) -> list[str]:
    rows = table(results)
    study.write(folder, "whatif", "coverage and bias of what-if forecasts", rows)
    return [json.dumps(row) for row in rows]


STUDIES = [Study("whatif", setups, draw, work)]

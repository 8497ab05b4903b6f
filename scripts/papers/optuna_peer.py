"""Figure ``decisions-optuna``: Optuna on the curves and the schedule of figure ``decisions``.

    cd scripts; python -m papers.optuna_peer    draws anew what the configurations of ``real.py`` are (with torch)

Optuna by ask and tell with its ``HyperbandPruner``: eight trials at a time, one atom each, a process a trial, never
resumed. A trial's start takes what gpusched's takes, or as long as a cold process that imports torch (1.6 s measured,
against 0.02 s) more. TPE's suggestion is taken to the nearest configuration that was recorded and not tried, and Optuna
is told that one. The best reported value counts, without the time of a save.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gpusched.sim.setup import Setup, recipe
from gpusched.sim.study import Mean
from papers import decisions, real, study
from papers.study import Study

DRAWS = real.FOLDER / "draws.json"
#: Seconds that a cold start takes more, and Hyperband's least steps and factor: as halving here, and by default.
COLD_S, RUNGS = 1.6, {"r 4": (4, 4), "r 1": (1, 3)}
SAMPLERS = ("tpe", "random")
NAMES = [
    f"optuna {s}, {r}, {start} start" for s in SAMPLERS for r in RUNGS for start in ("warm", "cold")
]


@dataclass(frozen=True, slots=True)
class Peer:
    """The outcome of one search."""

    label: str
    deadline: float
    best: float | None


def setups(quick: bool) -> list[Setup]:
    suite = decisions.SUITES[0]
    return [
        Setup(
            seed=seed,
            deadline_s=deadline_s,
            label=f"{task}/{name}",
            **suite.situation(task, launch_s),
        )
        for task in real.TASKS[: 1 if quick else None]
        for deadline_s, launch_s in suite.schedules[: 1 if quick else None]
        for name in NAMES
        for seed in range(2 if quick else decisions.SEEDS)
    ]


@functools.cache
def draws(task: str) -> list[list[tuple[float, int]]]:
    """Of each configuration the drawn values: a place and the number of options, or a quantile and 0."""
    found: list[list[tuple[float, int]]] = json.loads(DRAWS.read_text())[task]
    return found


def _distance(one: Sequence[float], other: Sequence[float], kinds: Sequence[int]) -> float:
    apart = zip(one, other, kinds, strict=True)
    return sum(float(a != b) if options else abs(a - b) for a, b, options in apart)


class Search:
    """A study of Optuna's, and the configurations that are left."""

    def __init__(self, setup: Setup, task: str, sampler: str, rungs: tuple[int, int]) -> None:
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._failed = optuna.trial.TrialState.FAIL
        kind = optuna.samplers.TPESampler
        made = kind(seed=setup.seed, multivariate=True, constant_liar=True)
        pruner = optuna.pruners.HyperbandPruner(rungs[0], real.STEPS, rungs[1])
        self.study = optuna.create_study(sampler=made, pruner=pruner)
        self._is_tpe = sampler == "tpe"
        order = recipe(setup).configurations().sample
        self.left = [(order(n) or {})["configuration"] for n in range(real.CONFIGURATIONS)]
        self._values = [[value for value, _ in drawn] for drawn in draws(task)]
        self._kinds = [options for _, options in draws(task)[0]]
        self._space = {
            str(n): CategoricalDistribution(range(options)) if options else FloatDistribution(0, 1)
            for n, options in enumerate(self._kinds)
        }

    def ask(self) -> tuple[Any, int]:
        """Return a trial and its configuration."""
        place = 0
        if self._is_tpe:
            asked = self.study.ask(self._space)
            wanted = [asked.params[name] for name in self._space]
            self.study.tell(asked, state=self._failed)
            near = [_distance(wanted, self._values[one], self._kinds) for one in self.left]
            place = near.index(min(near))
        taken = self.left.pop(place)
        self.study.enqueue_trial(dict(zip(self._space, self._values[taken], strict=True)))
        return self.study.ask(self._space), taken


def work(setup: Setup) -> Peer:
    """Run one search in virtual time."""
    import optuna

    task, _, name = setup.label.partition("/")
    sampler, rungs, start = name.removeprefix("optuna ").split(", ")
    search = Search(setup, task, sampler, RUNGS[rungs])
    start_s = setup.delays.launch_s + (COLD_S if start.startswith("cold") else 0.0)
    best = math.inf
    #: When a report comes, by slot; its trial, configuration and step.
    coming: list[tuple[float, int, Any, int, int]] = []

    def begin(now_s: float, slot: int) -> None:
        if search.left:
            trial, taken = search.ask()
            heapq.heappush(coming, (now_s + start_s + step_s(taken), slot, trial, taken, 1))

    def step_s(taken: int) -> float:
        return real.curves(task)[taken][1]

    for slot in range(setup.atoms):
        begin(0.0, slot)
    while coming and coming[0][0] <= setup.deadline_s:
        now_s, slot, trial, taken, step = heapq.heappop(coming)
        value = real.at(task, {"configuration": taken}, step)[0]
        best = min(best, value if math.isfinite(value) else math.inf)
        trial.report(value, step)
        if trial.should_prune():
            search.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif step < real.STEPS:
            heapq.heappush(coming, (now_s + step_s(taken), slot, trial, taken, step + 1))
            continue
        else:
            search.study.tell(trial, value)
        begin(now_s, slot)
    return Peer(setup.label, setup.deadline_s, best if best < math.inf else None)


def draw(results: Sequence[Peer], folder: Path) -> list[str]:
    ours = json.loads((folder / "decisions.json").read_text())["points"]
    rows, said = [], []
    for name in NAMES:
        cells: dict[str, list[float]] = {}
        for one in results:
            task, _, of = one.label.partition("/")
            if of == name:
                regret = decisions.regret(decisions.SUITES[0], one)  # type: ignore[arg-type]
                cells.setdefault(f"{task} {one.deadline:g} s", []).append(regret)
        mean = Mean.of(sum(each) / len(each) for each in zip(*cells.values(), strict=True))
        means = {cell: sum(values) / len(values) for cell, values in cells.items()}
        gaps = {cell: means[cell] - min(row[cell] for row in ours) for cell in means}
        worst = max(gaps, key=gaps.__getitem__)
        row = {
            "policy": name,
            "regret": round(mean.mean, 4),
            "half_width": round(mean.half_width, 4),
        }
        row |= {"worst_gap": round(gaps[worst], 4), "worst_at": worst}
        rows.append(row | {cell: round(value, 4) for cell, value in means.items()})
        each = " | ".join(f"{value:.2f}" for value in means.values())
        said.append(
            f"| {name} | {mean.mean:.3f} ± {mean.half_width:.3f} | {gaps[worst]:.2f} ({worst}) | {each} |"
        )
    study.write(
        folder, "decisions-optuna", "Mean regret of Optuna on curves of real training", rows
    )
    return said


STUDIES = [Study("decisions-optuna", setups, draw, work)]


# ---------------------------------------------------------------- what the configurations are


class _Drawn(Exception):
    """Everything has been drawn."""


class _Logging(Random):
    """Keeps what is drawn."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.log: list[tuple[float, int]] = []

    def choice(self, options: Sequence[Any]) -> Any:
        place = options.index(super().choice(options))
        self.log.append((place, len(options)))
        return options[place]

    def uniform(self, low: float, high: float) -> float:
        value = super().uniform(low, high)
        self.log.append((round((value - low) / (high - low), 6), 0))
        return value


def _fit(*_: Any) -> None:
    raise _Drawn


def _main() -> None:
    from sklearn.ensemble import GradientBoostingClassifier

    GradientBoostingClassifier.fit = _fit  # all trees are grown before the first is looked at
    found: dict[str, list[Any]] = {}
    for task in real.TASKS:
        for number in range(real.CONFIGURATIONS):
            random = _Logging(f"{task}/{number}")
            with contextlib.suppress(_Drawn):
                next(getattr(real, f"_train_{task}")(random))
            found.setdefault(task, []).append(random.log)
    DRAWS.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _main()

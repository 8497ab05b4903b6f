"""HyperDrive (Middleware'17), figures 4 c, 6 and 12 b and c: POP, Bandit, EarlyTerm and Default until a target.

Traces of a hundred configurations, replayed in 25 orders: made-up ones shaped like its figure 1 (``curves_cifar.py``),
and recorded ones of real training (``curves_recorded.py``). POP and EarlyTerm extrapolate curves by the deterministic
ensemble, not by MCMC, so that the figure takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched import policies
from gpusched.core.policy import View
from gpusched.policies.pop import Pop
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup, recipe
from gpusched.sim.single import run
from gpusched.sim.study import Mean
from papers import curves_cifar, curves_recorded, study
from papers.recorded import record
from papers.study import BOUNDS, Study

ORDERS = 25
MACHINES = (5, 10, 15, 20, 25)
TMAX_S = 72 * 3600.0
DELAYS = Delays(launch_s=5.0, resize_s=5.0, save_s=0.2, exit_s=0.5, release_s=0.5)
PREDICTED = {**BOUNDS, "predictor": "least_squares"}
POLICIES: dict[str, dict[str, Any]] = {
    "watched_pop": {"b": 10, "kill_threshold": 0.15, **PREDICTED},
    "bandit": {"b": 10, "eps": 0.5},
    "earlyterm": {"b": 30, "delta": 0.05, **PREDICTED},
    "fifo": {},
}
NAMES = {"watched_pop": "POP", "bandit": "Bandit", "earlyterm": "EarlyTerm", "fifo": "Default"}
SOURCES = {"cifar": curves_cifar, "recorded": curves_recorded}
#: Minutes from which a job counts as a long one (section 6.2.1).
LONG_MIN = 30.0
#: Parts of a search's life at which the promising pool is looked at.
PARTS = (0.2, 0.4, 0.6, 0.8, 1.0)


class WatchedPop(Pop):
    """POP, and the share of the slots that its promising trials were given, over time."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.shares: list[tuple[float, float]] = []

    def on_forecast(self, view: View, *about: Any) -> Any:
        decisions = super().on_forecast(view, *about)
        slots = max(1, view.atoms_total // self.options.atoms)
        self.shares.append((view.now, min(1.0, self.confidence.count / slots)))
        return decisions


policies.REGISTRY = {**policies.REGISTRY, "watched_pop": (__name__, "WatchedPop")}


@dataclass(frozen=True, slots=True)
class Search:
    """One search until its target. ``hours``: None where it was not reached."""

    source: str
    machines: int
    policy: str
    order: int
    hours: float | None
    #: Minutes that each job trained.
    durations_min: tuple[float, ...]
    #: Share of the slots for promising jobs at ``PARTS`` of the search's life; empty for other policies.
    promising: tuple[float, ...]


def setups(quick: bool) -> list[Setup]:
    return [
        Setup(
            policy=policy,
            workload=record(f"curves_{source}.py:accuracy", of.CONFIGURATIONS, of.EPOCHS),
            options={"R": of.EPOCHS, **options},
            atoms=machines,
            deadline_s=TMAX_S,
            seed=order,
            delays=DELAYS,
            target=of.TARGET,
            label=source,
        )
        for source, of in SOURCES.items()
        for machines in (MACHINES[:1] if quick else MACHINES)
        for order in range(2 if quick else ORDERS)
        for policy, options in POLICIES.items()
    ]


def work(setup: Setup) -> Search:
    search, result = run(setup, recipe(setup))
    state, policy = search.state, search.policy
    reached_s = result.time_to_target_s
    promising = []
    if isinstance(policy, WatchedPop):
        for part in PARTS:
            at = [share for at_s, share in policy.shares if at_s <= part * state.now]
            promising.append(at[-1] if at else 0.0)
    return Search(
        setup.label,
        setup.atoms,
        setup.policy,
        setup.seed,
        None if reached_s is None else reached_s / 3600.0,
        tuple(round(trial.training_s(state.now) / 60.0, 2) for trial in state.trials.values()),
        tuple(promising),
    )


def draw(results: Sequence[Search], folder: Path) -> list[str]:
    found = list(_points(results))
    name, title = "hyperdrive-12", "HyperDrive figure 12 b and c: hours to the target"
    study.write(folder, name, title, found)
    _picture(results, found, folder, name, title)
    few = min(result.machines for result in results)
    said = ["| curves, machines | POP | Bandit | EarlyTerm | Default |", "| --- " * 5 + "|"]
    for source in SOURCES:
        for machines in dict.fromkeys(point["machines"] for point in found):
            here = [p for p in found if (p["source"], p["machines"]) == (source, machines)]
            said.append(f"| {source}, {machines} | {' | '.join(map(_cell, here))} |")
    said.append(f"hours on {few} machines, largest less smallest; long jobs (figure 6):")
    for point in found:
        if point["machines"] == few:
            name = NAMES[point["policy"]]
            said.append(
                f"  {point['source']} {name}: {point['spread']:.2f} h; {point['long_jobs']:.1%} of "
                f"{point['jobs']:.0f} jobs trained {LONG_MIN:g} min and more"
            )
    for source in SOURCES:
        pops = [r.promising for r in results if (r.source, r.machines) == (source, few)]
        shares = [f"{Mean.of(at).mean:.2f}" for at in zip(*filter(None, pops), strict=True)]
        said.append(
            f"figure 4 c, {source}: slots for promising jobs by fifths: {', '.join(shares)}"
        )
    return said


def _points(results: Sequence[Search]) -> Iterable[dict[str, Any]]:
    """Yield a point a policy, number of machines and set of curves; ``behind_pop``: hours, order by order."""
    groups: dict[tuple[str, int, str], list[Search]] = {}
    for result in results:
        groups.setdefault((result.source, result.machines, result.policy), []).append(result)
    for (source, machines, policy), group in groups.items():
        pop = {r.order: r.hours for r in groups[source, machines, "watched_pop"]}
        hours = sorted(r.hours for r in group if r.hours is not None)
        mean = Mean.of(hours)
        behind = Mean.of(
            r.hours - other
            for r in group
            if r.hours is not None and (other := pop[r.order]) is not None
        )
        jobs = [minutes for r in group for minutes in r.durations_min]
        yield {
            "source": source,
            "machines": machines,
            "policy": policy,
            "orders": len(group),
            "missed": len(group) - len(hours),
            "hours": round(mean.mean, 4),
            "hours_half_width": round(mean.half_width, 4),
            "behind_pop": round(behind.mean, 4),
            "behind_pop_half_width": round(behind.half_width, 4),
            "spread": round(hours[-1] - hours[0], 3) if hours else None,
            "jobs": round(len(jobs) / len(group), 1),
            "long_jobs": round(sum(minutes >= LONG_MIN for minutes in jobs) / len(jobs), 4),
            "each_order": [round(value, 3) for value in hours],
        }


def _cell(point: dict[str, Any]) -> str:
    missed = f", missed {point['missed']}" if point["missed"] else ""
    if point["policy"] == "watched_pop":
        return f"{point['hours']:.2f} ± {point['hours_half_width']:.2f}{missed}"
    behind = f"{point['behind_pop']:+.2f} ± {point['behind_pop_half_width']:.2f}"
    return f"{point['hours']:.2f} ({behind}){missed}"


def _picture(
    results: Sequence[Search], found: Sequence[dict[str, Any]], folder: Path, name: str, title: str
) -> None:
    figure, axes = study.panels(2 * len(SOURCES), width=3.4, height=3.2, share=False)
    few = min(result.machines for result in results)
    for place, source in enumerate(SOURCES):
        over, orders = axes[2 * place : 2 * place + 2]
        here = [point for point in found if point["source"] == source]
        study.lines(over, here, "machines", "hours", "policy", NAMES)
        over.set_xlabel("machines")
        over.set_title(f"{source} curves", fontsize="small")
        each = [point["each_order"] for point in here if point["machines"] == few]
        orders.boxplot(each, whis=(0, 100), tick_labels=list(NAMES.values()))
        orders.set_title(f"{source} curves, {few} machines", fontsize="small")
    axes[0].set_ylabel("hours to the target")
    axes[0].legend(fontsize="x-small")
    study.save(figure, folder, name, title)


STUDIES = [Study("hyperdrive-12", "time to target, long jobs, promising slots", setups, draw, work)]

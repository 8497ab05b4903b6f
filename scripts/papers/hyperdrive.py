"""HyperDrive (Middleware'17), figures 12 b and c: POP, Bandit, EarlyTerm and Default until a target.

The curves of a hundred configurations in 25 orders, as in its section 7.1: made-up ones shaped like its figure 1
(``curves_cifar.py``), and recorded ones of real training (``curves_recorded.py``). ``hyperdrive-mcmc`` is POP by the
paper's predictor, of which a search takes half a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import Mean, simulate
from papers import curves_cifar, curves_recorded, study
from papers.study import BOUNDS, Study

ORDERS = 25
MACHINES = (5, 10, 15, 20, 25)
#: Most trials of POP (section 7.1).
CONFIGURATIONS = 100
TMAX_S = 72 * 3600.0
DELAYS = Delays(launch_s=5.0, resize_s=5.0, save_s=0.2, exit_s=0.5, release_s=0.5)
POP = {"b": 10, "kill_threshold": 0.15}
POLICIES: dict[str, dict[str, Any]] = {
    "pop": {**POP, **BOUNDS},
    "bandit": {"b": 10, "eps": 0.5},
    "earlyterm": {"b": 30, "delta": 0.05, **BOUNDS},
    "fifo": {},
}
MCMC = f"{Path(__file__).with_name('mcmc.py')}:McmcPop"
SOURCES = {"cifar": curves_cifar, "recorded": curves_recorded}


@dataclass(frozen=True, slots=True)
class Search:
    """One search until its target. ``hours``: None where it was not reached."""

    source: str
    machines: int
    policy: str
    order: int
    hours: float | None


def setups(quick: bool) -> list[Setup]:
    return [
        setup(source, policy, machines, order)
        for source in SOURCES
        for machines in (MACHINES[:1] if quick else MACHINES)
        for order in range(2 if quick else ORDERS)
        for policy in POLICIES
    ]


def setup(source: str, policy: str, machines: int, order: int, as_policy: str = "") -> Setup:
    """Return a search of one order. ``as_policy``: the name of a class derived from that policy's."""
    of = SOURCES[source]
    return Setup(
        policy=as_policy or policy,
        workload=str(Path(__file__).with_name(f"curves_{source}.py:accuracy")),
        options={"R": of.EPOCHS, **POLICIES[policy]},
        atoms=machines,
        deadline_s=TMAX_S,
        seed=order,
        delays=DELAYS,
        target=of.TARGET,
        max_trials=CONFIGURATIONS if policy == "pop" else None,
        label=source,
    )


def work(setup: Setup) -> Search:
    reached_s = simulate(setup).time_to_target_s
    hours = None if reached_s is None else reached_s / 3600.0
    return Search(setup.label, setup.atoms, setup.policy, setup.seed, hours)


def draw(results: Sequence[Search], folder: Path) -> list[str]:
    found = list(_points(results))
    name, title = "hyperdrive-12", "HyperDrive figure 12 b and c: hours to the target"
    study.write(folder, name, title, found)
    said = ["| curves, machines | POP | Bandit | EarlyTerm | Default |", "| --- " * 5 + "|"]
    for source in SOURCES:
        for machines in dict.fromkeys(point["machines"] for point in found):
            here = [p for p in found if (p["source"], p["machines"]) == (source, machines)]
            said.append(f"| {source}, {machines} | {' | '.join(map(_cell, here))} |")
    return said


def _points(results: Sequence[Search]) -> Iterable[dict[str, Any]]:
    """Yield a point a policy, number of machines and set of curves; ``behind_pop``: hours, order by order."""
    groups: dict[tuple[str, int, str], list[Search]] = {}
    for result in results:
        groups.setdefault((result.source, result.machines, result.policy), []).append(result)
    for (source, machines, policy), group in groups.items():
        pop = {r.order: r.hours for r in groups[source, machines, "pop"]}
        hours = sorted(r.hours for r in group if r.hours is not None)
        mean = Mean.of(hours)
        behind = Mean.of(
            r.hours - other
            for r in group
            if r.hours is not None and (other := pop[r.order]) is not None
        )
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
            "each_order": [round(value, 3) for value in hours],
        }


def _cell(point: dict[str, Any]) -> str:
    missed = f", missed {point['missed']}" if point["missed"] else ""
    if point["policy"] == "pop":
        return f"{point['hours']:.2f} ± {point['hours_half_width']:.2f}{missed}"
    behind = f"{point['behind_pop']:+.2f} ± {point['behind_pop_half_width']:.2f}"
    return f"{point['hours']:.2f} ({behind}){missed}"


# ---------------------------------------------------------------- the paper's MCMC


def setups_mcmc(quick: bool) -> list[Setup]:
    """POP by both predictors, order by order: a search by MCMC takes half a minute of a core."""
    return [
        replace(setup(source, "pop", machines, order, name), label=f"{source} {predictor}")
        for order in range(1 if quick else ORDERS)
        for source in SOURCES
        for machines in ((5,) if quick else (5, 25))
        for predictor, name in (("shapes", ""), ("mcmc", MCMC))
    ]


def draw_mcmc(results: Sequence[Search], folder: Path) -> list[str]:
    groups: dict[tuple[str, int], dict[str, list[float]]] = {}
    for result in results:
        source, predictor = result.source.split()
        took = TMAX_S / 3600.0 if result.hours is None else result.hours
        of = groups.setdefault((source, result.machines), {})
        of.setdefault(predictor, []).append(took)
    found: list[dict[str, Any]] = []
    for (source, machines), hours in groups.items():
        apart = [one - other for one, other in zip(hours["mcmc"], hours["shapes"], strict=True)]
        about = {"source": source, "machines": machines, "orders": len(apart)}
        means = {name: round(Mean.of(values).mean, 4) for name, values in hours.items()}
        half = {"apart_half_width": round(Mean.of(apart).half_width, 4)}
        found.append({**about, **means, "apart": round(Mean.of(apart).mean, 4), **half})
    study.write(folder, "hyperdrive-mcmc", "POP by MCMC and by shapes: hours to the target", found)
    return [str(point) for point in found]


STUDIES = [
    Study("hyperdrive-12", setups, draw, work),
    Study("hyperdrive-mcmc", setups_mcmc, draw_mcmc, work),
]

"""How fast the simulator is, with few and many trials and atoms. Prints JSON lines.

    python scripts/bench_sim.py

Processor time on one core of the whole driver, core, policy and simulated machine, without a journal, on
the synthetic workload of HyperSched's section 6 (r 5, R 500, eta 4), where one report in about twenty causes a launch,
with all that follows.

``trials``: 8 atoms; a search is played until so many trials have been drawn, then the next reports are timed.
``atoms``: whole searches of 20 time units, so that the allocations grow towards the end as they do in earnest.

The least of several rounds is given; a round goes through all sizes, so that a machine that is slower for a while is so
for all of them.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from gpusched.driver.loop import Driver
from gpusched.sim.physics import SimulatedCurve
from gpusched.sim.setup import Setup, experiment, recipe
from gpusched.sim.study import start
from gpusched.sim.workload import Synthetic

FOREVER_S = 1e9
DEADLINE_S = 20.0
Prepared = tuple[Driver, Any, Any]
POLICIES = ("asha", "hypersched")


class Uneven(Synthetic):
    """Steps of one length would end together and be dealt with in batches, which is cheaper."""

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        curve, random = super().curve(trial, hparams, seed), Random(trial)
        times = [self.step_time_s * random.lognormvariate(0.0, 0.1) for _ in range(64)]
        curve.step_time_s = lambda step: times[step % len(times)]
        return curve


def prepare(policy: str, atoms: int, deadline_s: float = FOREVER_S, seed: int = 0) -> Prepared:
    options = {"r": 5, "R": 500, "eta": 4.0}
    setup = Setup(
        policy=policy,
        options=options,
        atoms=atoms,
        deadline_s=deadline_s,
        seed=seed,
    )
    search, executor = experiment(recipe(setup)), setup.machine()
    executor.workload = Uneven()
    driver = Driver(search, executor)
    start(driver, executor)
    return driver, executor, search


def run(driver: Driver, search: Any, trials: int) -> None:
    drawn = search.state.trials
    while len(drawn) < trials:
        driver.turn()


def with_trials(policy: str, trials: int, window: int) -> dict[str, Any]:
    """The next ``window`` reports once ``trials`` trials have been drawn."""
    driver, executor, search = prepare(policy, 8)
    run(driver, search, trials)
    reports, launches = executor.reports, executor.launches
    gc.collect()
    gc.disable()  # as in a simulation
    began = time.process_time()
    while executor.reports < reports + window:
        driver.turn()
    taken_s = time.process_time() - began
    launches = executor.launches - launches
    return _line(policy, trials, 8, executor.reports - reports, launches, taken_s)


def with_atoms(policy: str, atoms: int, window: int) -> dict[str, Any]:
    """Whole searches, as many as ``window`` reports take."""
    reports = launches = seed = trials = 0
    taken_s = 0.0
    while reports < window:
        driver, executor, search = prepare(policy, atoms, DEADLINE_S, seed)
        gc.collect()
        gc.disable()
        began = time.process_time()
        driver.run()
        taken_s += time.process_time() - began
        reports, launches = reports + executor.reports, launches + executor.launches
        seed, trials = seed + 1, max(trials, len(search.state.trials))
    return _line(policy, trials, atoms, reports, launches, taken_s)


def _line(
    policy: str, trials: int, atoms: int, reports: int, launches: int, taken_s: float
) -> dict[str, Any]:
    return {
        "policy": policy,
        "trials": trials,
        "atoms": atoms,
        "reports": reports,
        "launches": launches,
        "reports_per_s": round(reports / taken_s),
        "us_per_report": round(1e6 * taken_s / reports, 2),
    }


def figures() -> Iterator[dict[str, Any]]:
    rounds, window = 5, 3_000
    sizes, pools = (100, 300, 1_000, 3_000, 10_000), (8, 32, 128, 512, 1_024)
    for policy in POLICIES:
        yield from _least("trials", rounds, [(with_trials, policy, n, window) for n in sizes])
        yield from _least("atoms", rounds, [(with_atoms, policy, n, 4 * window) for n in pools])


def _least(bench: str, rounds: int, works: list[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Of each the cheapest of so many rounds."""
    found = [[work(*of) for work, *of in works] for _ in range(rounds)]
    for lines in zip(*found, strict=True):
        yield {"bench": bench, **min(lines, key=lambda line: float(line["us_per_report"]))}


def main() -> None:
    for line in figures():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

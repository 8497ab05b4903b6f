"""How fast the simulator is, and how the cost of a report grows with trials and atoms. Prints JSON lines.

    python scripts/bench_sim.py [--quick] [--profile POLICY]

Processor time on one core of the whole driver, core, policy and simulated machine, without a journal, on
the synthetic workload of HyperSched's section 6 (r 5, R 500, eta 4), where one report in about twenty causes a launch,
with all that follows.

``trials``: 8 atoms; a search is played until so many trials have been drawn, then the next reports are timed.
``atoms``: whole searches of 20 time units, so that the allocations grow towards the end as they do in earnest.

The least of several rounds is given; a round goes through all sizes, so that a machine that is slower for a while is so
for all of them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
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
    search, executor = experiment(setup, recipe(setup)), setup.machine()
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


def figures(quick: bool) -> Iterator[dict[str, Any]]:
    rounds, window = (2, 500) if quick else (5, 3_000)
    sizes = (100, 500) if quick else (100, 300, 1_000, 3_000, 10_000)
    pools = (8, 64) if quick else (8, 32, 128, 512, 1_024)
    for policy in POLICIES:
        yield from _least("trials", rounds, [(with_trials, policy, n, window) for n in sizes])
        yield from _least("atoms", rounds, [(with_atoms, policy, n, 4 * window) for n in pools])


def _least(bench: str, rounds: int, works: list[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Of each the cheapest of so many rounds."""
    found = [[work(*of) for work, *of in works] for _ in range(rounds)]
    for lines in zip(*found, strict=True):
        yield {"bench": bench, **min(lines, key=lambda line: float(line["us_per_report"]))}


def growth(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The cost of a report at the largest size over that at the smallest."""
    for policy in POLICIES:
        for bench in ("trials", "atoms"):
            costs = [
                line["us_per_report"]
                for line in found
                if line["policy"] == policy and line["bench"] == bench
            ]
            yield {
                "bench": f"{bench} growth",
                "policy": policy,
                "times": round(costs[-1] / costs[0], 2),
            }


def profile(policy: str) -> None:
    driver, executor, search = prepare(policy, 32)
    profiler = cProfile.Profile()
    profiler.runcall(run, driver, search, 2_000)
    print(f"{executor.reports} reports, {executor.launches} launches")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, not to be quoted")
    parser.add_argument("--profile", metavar="POLICY", help="print where the time goes instead")
    args = parser.parse_args()
    if args.profile:
        profile(args.profile)
        return
    found = []
    for line in figures(args.quick):
        print(json.dumps(line), flush=True)
        found.append(line)
    for line in growth(found):
        print(json.dumps(line))


if __name__ == "__main__":
    main()

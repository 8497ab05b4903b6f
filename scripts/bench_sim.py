"""How fast the simulator is, and how the cost of a report grows with trials and atoms. Prints JSON lines.

    python scripts/bench_sim.py [--quick] [--plot FILE] [--profile POLICY]

A search is played until so many trials have been drawn; then the next reports are timed, in processor time on one core:
the whole driver, core, policy and simulated machine, with noise and without a journal. What is given is the least of
several such windows. With the synthetic workload of HyperSched's section 6 (r 5, R 500, eta 4) one report in about
twenty causes a launch, with all that follows.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpusched.driver import Driver
from gpusched.sim.physics import Noise
from gpusched.sim.setup import Setup, experiment, machine, recipe
from gpusched.sim.single import start

FOREVER_S = 1e9
POLICIES = ("asha", "hypersched")


def measure(policy: str, trials: int, atoms: int, window: int, repeats: int) -> dict[str, Any]:
    """The next ``window`` reports once ``trials`` trials have been drawn; processor seconds."""
    best, launches = float("inf"), 0
    for _ in range(repeats):
        driver, executor, search = prepare(policy, atoms)
        run(driver, search, trials)
        first, launches = executor.reports, executor.launches
        gc.collect()
        began = time.process_time()
        while executor.reports < first + window:
            driver.turn()
        best = min(best, (time.process_time() - began) / (executor.reports - first))
        launches = executor.launches - launches
    return {
        "policy": policy,
        "trials": trials,
        "atoms": atoms,
        "reports": window,
        "launches": launches,
        "reports_per_s": round(1 / best),
        "us_per_report": round(1e6 * best, 2),
    }


def prepare(policy: str, atoms: int) -> tuple[Driver, Any, Any]:
    options = {"r": 5, "R": 500, "eta": 4.0}
    # Without noise steps end together and are dealt with in batches, which is cheaper.
    noise = Noise(step_time=0.1)
    setup = Setup(policy=policy, options=options, atoms=atoms, deadline_s=FOREVER_S, noise=noise)
    search, executor = experiment(setup, recipe(setup)), machine(setup)
    driver = Driver(search, executor)
    start(driver, executor)
    return driver, executor, search


def run(driver: Driver, search: Any, trials: int) -> None:
    drawn = search.state.trials
    while len(drawn) < trials:
        driver.turn()


def figures(quick: bool) -> Iterator[dict[str, Any]]:
    repeats, window = (2, 500) if quick else (5, 3_000)
    sizes = (100, 500) if quick else (100, 300, 1_000, 3_000, 10_000)
    pools = (8, 64) if quick else (8, 32, 128, 512, 1_024)
    drawn = 500 if quick else 10_000
    for policy in POLICIES:
        for trials in sizes:
            yield {"bench": "trials", **measure(policy, trials, 8, window, repeats)}
        for atoms in pools:
            yield {"bench": "atoms", **measure(policy, drawn, atoms, 4 * window, repeats)}


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


def plot(found: list[dict[str, Any]], file: Path) -> None:
    from gpusched.sim.plot import pyplot

    plt = pyplot()
    figure, both = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axes, bench in zip(both, ("trials", "atoms"), strict=True):
        for policy in POLICIES:
            lines = [f for f in found if f["policy"] == policy and f["bench"] == bench]
            axes.plot(
                [f[bench] for f in lines], [f["us_per_report"] for f in lines], "o-", label=policy
            )
        axes.set_xscale("log")
        axes.set_xlabel(bench)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    both[0].set_ylabel("microseconds a report")
    both[0].legend()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def profile(policy: str) -> None:
    driver, executor, search = prepare(policy, 32)
    profiler = cProfile.Profile()
    profiler.runcall(run, driver, search, 2_000)
    print(f"{executor.reports} reports, {executor.launches} launches")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, not to be quoted")
    parser.add_argument("--plot", type=Path, metavar="FILE")
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
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()

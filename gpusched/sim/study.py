"""Many simulated runs: spread over the cores, and their means with intervals.

Results come back in the order of the setups, whichever was done first.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpusched.errors import GpuschedError
from gpusched.sim.setup import Setup
from gpusched.sim.single import Result, simulate

R = TypeVar("R")


def run_one(setup: Setup, runs: Path | None = None) -> Result:
    """Run a setup; with ``runs``, its folder is kept there."""
    if runs is None:
        return simulate(setup)
    from gpusched.sim.folder import simulate_into

    return simulate_into(runs, setup)[0]


def run_all(
    setups: Sequence[Setup],
    *,
    jobs: int | None = None,
    runs: Path | None = None,
    on_done: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run them on ``jobs`` processes (None: one a core). Raises what the first run to fail raised."""
    return map_all(functools.partial(run_one, runs=runs), setups, jobs=jobs, on_done=on_done)


def map_all(
    work: Callable[[Setup], R],
    setups: Sequence[Setup],
    *,
    jobs: int | None = None,
    on_done: Callable[[R], None] | None = None,
) -> list[R]:
    """``run_all`` with another kind of work, a function of a module."""
    jobs = min(jobs or cores(), len(setups))
    if jobs <= 1:
        return list(_in_turn(work, setups, on_done))
    for setup in setups:
        setup.load()  # here, so that what is wrong with a workload is said once, and forked processes have it
    with ProcessPoolExecutor(jobs, initializer=_begin) as pool:
        # The longest first, so that no core is left with one of them at the end.
        order = sorted(range(len(setups)), key=lambda n: -setups[n].deadline_s * setups[n].atoms)
        futures = {pool.submit(work, setups[n]): n for n in order}
        try:
            return _collect(futures, on_done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _in_turn(
    work: Callable[[Setup], R], setups: Iterable[Setup], on_done: Callable[[R], None] | None
) -> Iterable[R]:
    for setup in setups:
        result = work(setup)
        if on_done is not None:
            on_done(result)
        yield result


def _collect(futures: dict[Future[R], int], on_done: Callable[[R], None] | None) -> list[R]:
    found: dict[int, R] = {}
    try:
        for future in as_completed(futures):
            found[futures[future]] = result = future.result()
            if on_done is not None:
                on_done(result)
    except BrokenProcessPool:
        raise GpuschedError(
            "a process that simulated was killed, most likely for want of memory; try fewer --jobs"
        ) from None
    return [found[n] for n in range(len(found))]


def _begin() -> None:
    """One core a process: the linear algebra of forecasts must not start threads. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and half the width of its 95% interval; NaN where there are too few values."""

    mean: float
    half_width: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        found = list(values)
        if not found:
            return cls(math.nan, math.nan, 0)
        mean = statistics.fmean(found)
        if len(found) < 2:
            return cls(mean, math.nan, len(found))
        spread = statistics.stdev(found) / math.sqrt(len(found))
        return cls(mean, student_t(len(found) - 1) * spread, len(found))

    def __str__(self) -> str:
        if self.count == 0:
            return "-"
        if math.isnan(self.half_width) or self.half_width < 1e-9 * abs(self.mean):
            return f"{self.mean:.4g}"
        width = f"{self.half_width:.0f}" if self.half_width >= 10 else f"{self.half_width:.2g}"
        return f"{self.mean:.4g} ± {width}"


def student_t(degrees: int, level: float = 0.95) -> float:
    """Return the number of standard errors in half of a two-sided interval."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2))


@dataclass(frozen=True, slots=True)
class Row:
    """All seeds of one policy in one situation. ``against``: the difference to the first policy there, seed by seed."""

    policy: str
    label: str
    atoms: int
    deadline_s: float
    scaling: str
    delay_s: float
    seeds: int
    best: Mean
    trials: Mean
    steps: Mean
    cost_s: Mean
    cost: Mean
    time_to_target_s: Mean
    reached: int
    against: Mean | None

    @property
    def name(self) -> str:
        return f"{self.policy} {self.label}".rstrip()


Situation = tuple[str, int, float, str, float]


def situation(result: Result) -> Situation:
    """Return all that a policy cannot choose."""
    return (result.workload, result.atoms, result.deadline, result.scaling, result.delay)


def summarise(results: Sequence[Result]) -> list[Row]:
    """One row for each situation and policy, in the order of the results."""
    groups: dict[tuple[Situation, str, str], list[Result]] = {}
    for result in results:
        key = (situation(result), result.policy, result.label)
        groups.setdefault(key, []).append(result)
    first: dict[Situation, dict[int, float]] = {}
    rows = []
    for (where, policy, label), found in groups.items():
        best = {result.seed: result.best for result in found if result.best is not None}
        yardstick = first.get(where)
        if yardstick is None:
            first[where] = best
        rows.append(_row(policy, label, found, best, yardstick))
    return rows


def _row(
    policy: str,
    label: str,
    found: Sequence[Result],
    best: dict[int, float],
    yardstick: dict[int, float] | None,
) -> Row:
    one = found[0]
    against = None
    if yardstick is not None:
        against = Mean.of(
            value - yardstick[seed] for seed, value in best.items() if seed in yardstick
        )
    times = [r.time_to_target_s for r in found if r.time_to_target_s is not None]
    return Row(
        policy,
        label,
        one.atoms,
        one.deadline,
        one.scaling,
        one.delay,
        len(found),
        Mean.of(best.values()),
        Mean.of(result.trials for result in found),
        Mean.of(result.steps for result in found),
        Mean.of(result.cost_s for result in found),
        Mean.of(result.cost for result in found),
        Mean.of(times),
        len(times),
        against,
    )

"""Many simulated runs, spread over the cores. Results come back in the order of the setups, whoever was done first."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from gpusched.errors import GpuschedError
from gpusched.sim.setup import Setup
from gpusched.sim.single import Result, simulate

R = TypeVar("R")


def run_one(setup: Setup, runs: Path | None = None) -> Result:
    """One run; with ``runs``, its folder is kept there."""
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

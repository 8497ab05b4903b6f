"""Simulated runs: one from its setup to its result (``simulate``), many spread over the cores, and their means.

Results come back in the order of the setups, whichever was done first.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from gpusched import policies
from gpusched.core.events import DevicesJoined
from gpusched.core.experiment import Experiment
from gpusched.driver.loop import Driver, Observer
from gpusched.driver.suggester import ChildSuggester
from gpusched.journal.log import Journal
from gpusched.recipe.recipe import Recipe
from gpusched.sim.executor import SimExecutor
from gpusched.sim.setup import Setup, experiment, recipe

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a run; ``line`` is what ``simulate --json`` prints of it.

    ``best``: the metric of the best model on disk at the end (None: no model); ``top_steps``: how many steps
    it had had. ``time_to_target_s``: None if the target was not reached. ``device_s``: device-seconds used.
    ``history``: (at, metric) of each new best report.
    """

    policy: str
    atoms: int
    deadline: float
    scaling: str
    delay: float
    seed: int
    best: float | None
    trials: int
    steps: int
    label: str
    top_steps: int
    launches: int
    device_s: float
    ended_at_s: float
    time_to_target_s: float | None
    history: tuple[tuple[float, float], ...] = field(repr=False)

    def line(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.repr}


def start(driver: Driver, executor: SimExecutor) -> None:
    """Tell the experiment that it has begun, as the daemon does."""
    ids = tuple(device.id for device in executor.inventory())
    driver.handle([DevicesJoined(at=0.0, devices=ids)])


def simulate(setup: Setup, *, observer: Observer | None = None, check: bool = False) -> Result:
    """Run a setup to its end. ``check``: assert every invariant after every event (slow)."""
    return run(setup, recipe(setup), observer=observer, check=check)[1]


def run(
    setup: Setup,
    of: Recipe,
    *,
    journal: Journal | None = None,
    observer: Observer | None = None,
    check: bool = False,
) -> tuple[Experiment, Result]:
    """Run the search of this recipe to its end."""
    search, executor = experiment(of), setup.machine()
    trials = search.state.trials
    suggester = ChildSuggester(of, trials, is_patient=True) if of.has_memory else None
    driver = Driver(search, executor, journal, suggester=suggester, observer=observer, check=check)
    gc.disable()  # a simulation makes no cyclic garbage, and keeps ever more that would be looked at
    try:
        start(driver, executor)
        driver.run()
    finally:
        gc.enable()
        if suggester is not None:
            suggester.close()
    return search, result(setup, search, executor)


def result(setup: Setup, search: Experiment, executor: SimExecutor) -> Result:
    state = search.state
    best = state.best
    reached = (at for at, metric in executor.improvements if state.rules.is_reached_by(metric))
    return Result(
        policy=policies.label(setup.policy),
        atoms=setup.atoms,
        deadline=setup.deadline_s,
        scaling=setup.scaling,
        delay=setup.delays.launch_s,
        seed=setup.seed,
        best=best.metric if best is not None else None,
        trials=len(state.trials),
        steps=executor.reports,
        label=setup.label,
        top_steps=best.step if best is not None else 0,
        launches=executor.launches,
        device_s=executor.device_s,
        ended_at_s=state.now,
        time_to_target_s=next(reached, None),
        history=tuple(executor.improvements),
    )


# ---------------------------------------------------------------- many


def run_all(
    setups: Sequence[Setup], work: Callable[[Setup], R], *, jobs: int | None = None
) -> list[R]:
    """Do the work, ``simulate`` or another function of a module, on ``jobs`` processes (None: one a core).

    Raises what the first run to fail raised; that, and Ctrl-C, ends the others.
    """
    jobs = min(jobs or len(os.sched_getaffinity(0)), len(setups))
    if jobs <= 1:
        return [work(setup) for setup in setups]
    for setup in setups:
        setup.load()  # here, so that what is wrong with a workload is said once, and forked processes have it
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, initializer=_begin) as pool:
        try:
            return list(pool.map(work, setups))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                if worker not in others:
                    worker.terminate()
            raise


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
        from scipy.special import stdtrit  # dear to import

        return cls(mean, float(stdtrit(len(found) - 1, 0.975)) * spread, len(found))

    def __str__(self) -> str:
        if self.count == 0:
            return "-"
        if math.isnan(self.half_width) or self.half_width < 1e-9 * abs(self.mean):
            return f"{self.mean:.4g}"
        width = f"{self.half_width:.0f}" if self.half_width >= 10 else f"{self.half_width:.2g}"
        return f"{self.mean:.4g} ± {width}"

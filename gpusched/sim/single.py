"""One simulated run, from its setup to its result."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from gpusched import policies
from gpusched.core.commands import Forecast, Suggest
from gpusched.core.events import ExperimentStarted
from gpusched.core.experiment import Experiment
from gpusched.driver.forecaster import InlineForecaster
from gpusched.driver.loop import Driver, Observer
from gpusched.driver.suggester import ChildSuggester, make_suggester
from gpusched.journal.log import Journal
from gpusched.recipe.recipe import Recipe
from gpusched.sim.executor import SimExecutor
from gpusched.sim.setup import Setup, experiment, machine, recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run, as ``simulate --json`` prints it.

    ``best``: the metric of the best model on disk at the end (None: no model); ``top_steps``: how many steps
    it had had. ``time_to_target_s``: None if the target was not reached. ``device_s``: device-seconds used;
    ``cost_s``: device-seconds to pay for; ``cost``: the same at the price of an instance-hour.
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
    workload: str
    label: str
    top_trial: int | None
    top_steps: int
    launches: int
    device_s: float
    cost_s: float
    cost: float
    ended_at_s: float
    time_to_target_s: float | None
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Outcome):
    """An outcome with its ``history``: (at, metric) of each new best report."""

    history: tuple[tuple[float, float], ...] = field(repr=False)

    def line(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(Outcome)}


def start(driver: Driver, executor: SimExecutor) -> None:
    """Tell the experiment that it has begun, as the daemon does."""
    devices = executor.inventory()
    islands = {device.id: device.island for device in devices}
    ids = tuple(device.id for device in devices)
    driver.handle([ExperimentStarted(at=0.0, devices=ids, islands=islands)])


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
    began = time.perf_counter()
    search, executor = experiment(setup, of), machine(setup)
    helpers = make_helpers(setup, of)
    driver = Driver(
        search,
        executor,
        journal,
        helpers=helpers,
        observer=observer,
        check=check,
    )
    try:
        with without_collector():
            start(driver, executor)
            driver.run()
    finally:
        for helper in helpers.values():
            helper.close()
    return search, result(setup, search, executor, time.perf_counter() - began)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Run without looking for cyclic garbage: a simulation makes none, and all that it keeps would be looked at again
    and again, the more the longer it is."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def make_helpers(setup: Setup, of: Recipe) -> dict[type, InlineForecaster | ChildSuggester]:
    """Return the predictor that the policy's options ask for, in this process, and the sampler if it has a memory."""
    helpers: dict[type, InlineForecaster | ChildSuggester] = {}
    predictor = of.policy_options.get("predictor")
    if isinstance(predictor, str):
        helpers[Forecast] = InlineForecaster(predictor, setup.seed)
    if (suggester := make_suggester(of, is_patient=True)) is not None:
        helpers[Suggest] = suggester
    return helpers


def result(setup: Setup, search: Experiment, executor: SimExecutor, wall_s: float) -> Result:
    state = search.state
    best = state.best
    reached = None
    if setup.target is not None:
        sign = state.rules.sign
        hits = (at for at, metric in executor.improvements if metric * sign >= setup.target * sign)
        reached = next(hits, None)
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
        workload=setup.workload,
        label=setup.label,
        top_trial=best.trial if best is not None else None,
        top_steps=best.step if best is not None else 0,
        launches=executor.launches,
        device_s=executor.device_s,
        cost_s=executor.paid_s,
        cost=executor.paid_s / 3600.0 / setup.instance * setup.price,
        ended_at_s=state.now,
        time_to_target_s=reached,
        wall_s=wall_s,
        history=tuple(executor.improvements),
    )

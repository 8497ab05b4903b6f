"""Hermes (Electronics'21), figure 5: how soon good jobs converge under FIFO, round-robin, SLAQ and Hermes.

16 jobs on four GPUs. What is measured is section 4.2's: the time until a good job has 90% of the fall to the best final
loss, averaged over the good jobs, relative to FIFO. Saving and restoring take what figure 7 says of the smallest model
(0.24 + 0.43 s) and of the largest (1.57 s together).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.core.commands import Command
from gpusched.core.events import Event, Reported
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup, recipe
from gpusched.sim.study import Mean, run
from papers import round_robin, study
from papers.curves_bins import FIRST_LOSS, STEPS
from papers.study import Study

ORDERS = 20
GPUS = 4
BEST_LOSS = 1.0
GOAL = FIRST_LOSS - 0.9 * (FIRST_LOSS - BEST_LOSS)
GOOD_JOBS = {"bin_1": 4, "bin_2": 12}
MODELS = {
    "short": Delays(launch_s=0.43, resize_s=0.43, save_s=0.24),
    "long": Delays(launch_s=0.9, resize_s=0.9, save_s=0.67),
}
#: Hermes under both of the paper's quantum rules: 3.3 (it grows with the fall of the loss) and Algorithm 3 (fixed).
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "fifo": ("fifo", {}),
    "round_robin": (round_robin.RoundRobin.name, {}),
    "slaq": (round_robin.Slaq.name, {}),
    "hermes": ("hermes", {}),
    "hermes_fixed": ("hermes", {"milestones": ()}),
}


@dataclass(frozen=True, slots=True)
class Converged:
    """Mean seconds until one of these jobs has converged; those that never did count as the whole run."""

    jobs: str
    model: str
    policy: str
    seed: int
    seconds: float


def setups(quick: bool) -> list[Setup]:
    found = []
    for name in GOOD_JOBS:
        for model in ("short",) if quick else MODELS:
            workload = str(Path(__file__).with_name(f"curves_bins.py:{name}_{model}"))
            for seed in range(2 if quick else ORDERS):
                for title, (policy, own) in POLICIES.items():
                    setup = Setup(
                        policy=policy,
                        workload=workload,
                        options={"R": STEPS, **own},
                        atoms=GPUS,
                        deadline_s=1e5,
                        seed=seed,
                        delays=MODELS[model],
                        label=f"{name} {model} {title}",
                    )
                    found.append(setup)
    return found


def work(setup: Setup) -> Converged:
    """One run, watched for when each job converges."""
    reached: dict[int, float] = {}

    def observer(event: Event, _: Sequence[Command]) -> None:
        if isinstance(event, Reported) and event.metric is not None and event.metric <= GOAL:
            reached.setdefault(event.trial, event.at)

    search, result = run(setup, recipe(setup), observer=observer)
    name, model, policy = setup.label.split()
    trials = {trial.hparams["job"]: trial.id for trial in search.state.trials.values()}
    good = [trials[job] for job in range(GOOD_JOBS[name])]
    mean_s = statistics.fmean(reached.get(trial, result.ended_at_s) for trial in good)
    return Converged(name.replace("_", " "), model, policy, setup.seed, mean_s)


def draw(runs: Sequence[Converged], folder: Path) -> list[str]:
    name, title = "hermes-5", "Hermes figure 5: time until good jobs converge, relative to FIFO"
    fifo = {(r.jobs, r.model, r.seed): r.seconds for r in runs if r.policy == "fifo"}
    found: list[dict[str, Any]] = []
    for jobs, model, policy in dict.fromkeys((r.jobs, r.model, r.policy) for r in runs):
        mine = [r for r in runs if (r.jobs, r.model, r.policy) == (jobs, model, policy)]
        shares = [r.seconds / fifo[jobs, model, r.seed] for r in mine]
        relative = Mean.of(shares)
        found.append(
            {
                "jobs": jobs,
                "model": model,
                "policy": policy,
                "orders": len(mine),
                "seconds": round(Mean.of(r.seconds for r in mine).mean, 2),
                "relative": round(relative.mean, 4),
                "relative_half_width": round(relative.half_width, 4),
            }
        )
    study.write(folder, name, title, found)
    return ["Hermes: time until good jobs converge, relative to FIFO", *_said(found)]


def _said(found: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"  {p['jobs']} {p['model']}: {p['policy']} {p['relative']:.2f} ± {p['relative_half_width']:.2f}"
        for p in found
    ]


STUDIES = [Study("hermes-5", setups, draw, work)]

"""HyperDrive (Middleware'17), figure 12 b and c: time to the target of POP, Bandit, EarlyTerm and Default.

Traces of a hundred configurations (``curves_cifar.py``), replayed in 25 orders. POP and EarlyTerm extrapolate curves by
the deterministic ensemble, not by MCMC, so that the figure takes minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.single import Result
from papers import study
from papers.curves_cifar import CONFIGURATIONS, EPOCHS, TARGET
from papers.recorded import record
from papers.study import BOUNDS, Study

ORDERS = 25
TMAX_S = 72 * 3600.0
DELAYS = Delays(launch_s=5.0, resize_s=5.0, save_s=0.2, exit_s=0.5, release_s=0.5)
PREDICTED = {**BOUNDS, "predictor": "least_squares"}
POLICIES = {
    "pop": {"b": 10, "target": TARGET, "kill_threshold": 0.15, **PREDICTED},
    "bandit": {"b": 10, "eps": 0.5},
    "earlyterm": {"b": 30, "delta": 0.05, **PREDICTED},
    "fifo": {},
}
NAMES = {"pop": "POP", "bandit": "Bandit", "earlyterm": "EarlyTerm", "fifo": "Default"}


def setups(quick: bool) -> list[Setup]:
    trace = record("curves_cifar.py:accuracy", CONFIGURATIONS, EPOCHS)
    return [
        Setup(
            policy=policy,
            workload=trace,
            options={"R": EPOCHS, **options},
            atoms=machines,
            deadline_s=TMAX_S,
            seed=order,
            delays=DELAYS,
            target=TARGET,
        )
        for machines in ((5,) if quick else (5, 10, 15, 20, 25))
        for order in range(2 if quick else ORDERS)
        for policy, options in POLICIES.items()
    ]


def hours(result: Result) -> float | None:
    return None if result.time_to_target_s is None else result.time_to_target_s / 3600.0


def draw(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hyperdrive-12", "HyperDrive figure 12 b and c: hours to 77% accuracy"
    found = study.points(results, {"hours": hours}, ("policy", "atoms"))
    machines = min(result.atoms for result in results)
    spread = []
    for policy in POLICIES:
        taken = [hours(r) for r in results if (r.policy, r.atoms) == (policy, machines)]
        spread.append(sorted(value for value in taken if value is not None))
        for point in found:
            if (point["policy"], point["atoms"]) == (policy, machines):
                point["each_order"] = [round(value, 3) for value in spread[-1]]
    study.write(folder, name, title, found)
    figure, axes = study.panels(2, width=3.9, height=3.2, share=False)
    study.lines(axes[0], found, "atoms", "hours", "policy", NAMES)
    axes[0].set_xlabel("machines")
    axes[0].set_ylabel("hours to the target")
    axes[0].legend(fontsize="x-small")
    axes[1].boxplot(spread, whis=(0, 100), tick_labels=[NAMES[policy] for policy in POLICIES])
    axes[1].set_title(f"{machines} machines, {len(spread[0])} orders", fontsize="small")
    study.save(figure, folder, name, title)
    return _said(found, spread, machines)


def _said(
    found: Sequence[dict[str, object]], spread: list[list[float]], machines: int
) -> list[str]:
    said = [
        f"HyperDrive figure 12 c, {machines} machines: mean hours to the target (largest - smallest)"
    ]
    for policy, hours_of in zip(POLICIES, spread, strict=True):
        if hours_of:
            mean = sum(hours_of) / len(hours_of)
            said.append(f"  {NAMES[policy]}: {mean:.2f} ({hours_of[-1] - hours_of[0]:.2f})")
    for n in dict.fromkeys(point["atoms"] for point in found):
        here = [f"{NAMES[str(p['policy'])]} {p['hours']}" for p in found if p["atoms"] == n]
        said.append(f"  {n} machines: {', '.join(here)}")
    return said


STUDIES = [Study("hyperdrive-12", "time to target over configuration orders", setups, draw)]

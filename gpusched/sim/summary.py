"""Many results in a few rows: means over seeds with their 95% confidence intervals (Student's t)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusched.sim.single import Result


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
    """How many standard errors a two-sided interval reaches."""
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
    time_to_target_s: Mean
    reached: int
    against: Mean | None

    @property
    def name(self) -> str:
        return f"{self.policy} {self.label}".rstrip()


Situation = tuple[str, int, float, str, float]


def situation(result: Result) -> Situation:
    """What a policy cannot choose."""
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
        Mean.of(times),
        len(times),
        against,
    )

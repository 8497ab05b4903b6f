"""Numbers of a search: trials by rank, the best so far, speed by size, importance of hyperparameters. Pure."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.journal.timeline import Timeline, TrialTimeline
from gpusched.text import flat


def ranked(told: Timeline, sign: float) -> list[TrialTimeline]:
    """Sort the trials, the best first; trials without a metric come last."""

    def place(trial: TrialTimeline) -> tuple[bool, float]:
        best = trial.best(sign)
        return best is None, -(best or 0.0) * sign

    return sorted(told.trials.values(), key=place)


def best_over_time(told: Timeline, sign: float) -> list[tuple[float, float]]:
    """Return the steps of the best metric reported so far, as corners of a staircase."""
    reports = sorted(
        (at, value)
        for trial in told.trials.values()
        for at, _, value in trial.curve
        if value is not None and math.isfinite(value)
    )
    points: list[tuple[float, float]] = []
    for at, value in reports:
        if not points or value * sign > points[-1][1] * sign:
            points.append((at, value))
    return [*points, (told.until, points[-1][1])] if points else []


def measured_speed(trials: Iterable[TrialTimeline]) -> dict[int, float]:
    """Return by size how many times faster a step was than on one atom: medians over the trials that had both.

    The first step of a launch warms up and is not counted.
    """
    ratios: dict[int, list[float]] = {}
    for trial in trials:
        times: dict[int, list[float]] = {}
        for incarnation in trial.incarnations:
            found = [step.time_s for step in incarnation.steps[1:] if step.time_s]
            times.setdefault(len(incarnation.devices), []).extend(found)
        medians = {size: statistics.median(found) for size, found in times.items() if found}
        for size, step_s in medians.items() if 1 in medians else ():
            ratios.setdefault(size, []).append(medians[1] / step_s)
    return {size: statistics.median(found) for size, found in sorted(ratios.items())}


# ---------------------------------------------------------------- importance


@dataclass(frozen=True, slots=True)
class Importance:
    """Strength with which the rank of the best metric follows a hyperparameter, 0 to 1, over ``trials`` trials.

    ``direction``: +1 where larger values did better, -1 where smaller did, 0 for a choice among names.
    """

    name: str
    strength: float
    direction: int
    trials: int


def importance(trials: Iterable[TrialTimeline], sign: float) -> list[Importance]:
    """Rank the hyperparameters that varied: numbers by Spearman's correlation, names by the correlation ratio of ranks.

    The strongest comes first. A trial that was stopped early counts with the best it had by then: the ranks show what a
    policy saw rather than what a model could do.
    """
    bests = ((trial, trial.best(sign)) for trial in trials)
    known = [(dict(flat(trial.hparams)), best) for trial, best in bests if best is not None]
    if len(known) < 4:
        return []
    names = dict.fromkeys(name for hparams, _ in known for name in hparams)
    found = [_importance_of(name, known, sign) for name in names]
    ranked = [importance for importance in found if importance is not None]
    return sorted(ranked, key=lambda importance: -importance.strength)


def _importance_of(
    name: str, known: Sequence[tuple[Mapping[str, Any], float]], sign: float
) -> Importance | None:
    pairs = [(hparams[name], best * sign) for hparams, best in known if name in hparams]
    values = [value for value, _ in pairs]
    if len(pairs) < 4 or all(value == values[0] for value in values):
        return None
    ranks = _ranks([score for _, score in pairs])
    if all(type(value) in (int, float) and math.isfinite(value) for value in values):
        varied = len(set(ranks)) > 1
        rho = statistics.correlation(_ranks([float(v) for v in values]), ranks) if varied else 0.0
        return Importance(name, abs(rho), (rho > 0) - (rho < 0), len(pairs))
    groups: dict[str, list[float]] = {}
    for value, rank in zip(values, ranks, strict=True):
        groups.setdefault(json.dumps(value, sort_keys=True, default=str), []).append(rank)
    mean = sum(ranks) / len(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
    return Importance(name, math.sqrt(between / whole) if whole else 0.0, 0, len(pairs))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share the mean of theirs."""
    ordered = sorted(values)
    return [(bisect_left(ordered, v) + bisect_right(ordered, v) + 1) / 2 for v in values]

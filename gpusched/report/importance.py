"""Importance of hyperparameters: how far the rank of a trial's best metric goes with each. Pure."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.journal.timeline import TrialTimeline
from gpusched.text import flat


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

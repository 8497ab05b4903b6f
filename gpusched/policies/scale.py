"""Metrics on a scale from 0 (worst) to 1 (best): min-max normalisation as in HyperDrive (Middleware'17, 6.3, eq. 4).

For policies that multiply metrics or predict them: neither makes sense without knowing where the metric can lie. For an
accuracy the bounds are 0 and 1; for a loss 0 and, say, the loss of a model that has learnt nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpusched.core.decisions import BadOption, TrialView

#: Longer curves are thinned to at most this many values before they are extrapolated.
MAX_CURVE = 256


class Scale:
    """From scores (more is better, ``sign`` times the metric) to 0..1. Values beyond the bounds count as the bound."""

    __slots__ = ("_high", "_low", "_sign")

    def __init__(self, metric_min: float, metric_max: float, sign: float) -> None:
        self._low, self._high, self._sign = metric_min, metric_max, sign

    @classmethod
    def within(cls, options: Any, sign: float) -> Scale:
        """Return the scale between the bounds that a policy's options give."""
        return cls(options.metric_min, options.metric_max, sign)

    def of_score(self, score: float) -> float:
        """Return 0..1 for a finite score; 0 for minus infinity (a metric that was not finite)."""
        return self.of_metric(score * self._sign) if score > float("-inf") else 0.0

    def of_metric(self, metric: float) -> float:
        """Return 0..1 for a finite metric."""
        share = (metric - self._low) / (self._high - self._low)
        share = min(1.0, max(0.0, share))
        return share if self._sign > 0 else 1.0 - share

    def metric(self, share: float) -> float:
        """Return the metric at this place of the scale."""
        if self._sign < 0:
            share = 1.0 - share
        return self._low + share * (self._high - self._low)


def bounds_problems(
    metric_min: float | None, metric_max: float | None, policy: str
) -> Iterator[BadOption]:
    """Yield what is wrong with the bounds of a metric, which ``policy`` cannot do without."""
    if metric_min is None and metric_max is None:
        yield (
            "metric_min",
            f"{policy} needs a bounded metric: give metric_min and metric_max, the values it can have "
            "(0 and 1 for an accuracy)",
        )
        return
    if metric_min is None or metric_max is None:
        missing = "metric_min" if metric_min is None else "metric_max"
        yield missing, "metric_min and metric_max go together: give both"
    elif not metric_min < metric_max:
        yield "metric_max", f"must be above metric_min = {metric_min:g}, not {metric_max:g}"


def curve_of(trial: TrialView, scale: Scale) -> tuple[tuple[float, ...], int]:
    """Return the trial's learning curve on the scale, one value every ``stride`` steps, and that stride.

    A step that was trained twice counts with its later value; a metric that was not finite is replaced by the one
    before it (by the one after it at the beginning). Empty if no metric was finite.
    """
    values: dict[int, float] = dict(trial.curve)
    length = max(values, default=0)
    stride = -(-length // MAX_CURVE) if length else 1
    known = next((values[step] for step in sorted(values) if values[step] == values[step]), None)
    if known is None:
        return (), 1
    found = []
    for step in range(1, length + 1):
        value = values.get(step)
        if value is not None and value == value:
            known = value
        if (length - step) % stride == 0:
            found.append(scale.of_metric(known))
    return tuple(found), stride

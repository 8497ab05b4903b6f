"""Metrics of a report: what may stand in one, and how a report is shown where no daemon takes it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from gpusched.protocol import Metric, Report, as_metric
from gpusched.text import nearest


def clean_metrics(metrics: Mapping[str, object], wanted: str | None) -> dict[str, Metric]:
    """Return the metrics as plain numbers; tensors and numpy scalars of one element are taken.

    Raises:
        TypeError: A metric is not a number.
        ValueError: The metric that the recipe searches by is missing.
    """
    if wanted is not None and wanted not in metrics:
        instead = nearest(wanted, metrics, 0.5) or next(iter(metrics), None)
        has = f"has {', '.join(metrics)} but not" if metrics else "lacks"
        fix = f", or write `metric: {instead}` in the recipe" if instead else ""
        raise ValueError(
            f"this report {has} {wanted!r}, by which the recipe searches: "
            f"call trial.report({wanted}=...){fix}"
        )
    return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: object) -> Metric:
    if type(value) is float and math.isfinite(value):
        return value
    plain: Any = value
    if not isinstance(value, numbers.Real):
        item = getattr(value, "item", None)
        if callable(item):
            shape = tuple(getattr(value, "shape", ()))
            if math.prod(shape) != 1:
                raise TypeError(
                    f"metric {name!r} has shape {shape}: report one number, e.g. {name}.mean()"
                )
            plain = item()
        if not isinstance(plain, numbers.Real):
            raise TypeError(
                f"metric {name!r} is {_short(value)}, not a number: report a float, an int or a "
                f"tensor of one element"
            )
    if isinstance(plain, numbers.Integral) and abs(int(plain)) < 1 << 63:
        return int(plain)
    try:
        return as_metric(float(plain))
    except OverflowError:
        return "inf" if plain > 0 else "-inf"


def shown(report: Report) -> str:
    """Word a report as a line for people, where no daemon takes it."""
    parts = [
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in report.metrics.items()
    ]
    return "  ".join([f"step {report.step}", *parts, f"({report.step_time_s or 0.0:.2f} s)"])


def _short(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"

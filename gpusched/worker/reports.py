"""Reports on rank 0: what may stand in one, and its way into the trial's own file, to the daemon, and back.

A prestarted incarnation that does not count yet (``handover.py``) keeps its reports back: no file may hold what was
trained from a checkpoint that was never committed.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from gpusched import failpoints
from gpusched.folder.lock import Fence
from gpusched.folder.reports import ReportLog
from gpusched.protocol import Go, Metric, Report, as_metric
from gpusched.text import nearest
from gpusched.worker.channel import Channel
from gpusched.worker.handover import Successor

KEPT_BACK_MAX = 10_000


class Reporter:
    """Reports of one incarnation. ``open_log`` opens the trial's own file once no other process writes to it."""

    def __init__(
        self,
        open_log: Callable[[], ReportLog],
        channel: Channel,
        successor: Successor | None,
        fence: Fence,
    ) -> None:
        self._fence = fence
        self._open_log = open_log
        self._log: ReportLog | None = None if successor is not None else open_log()
        self._channel = channel
        self._successor = successor
        self._kept: list[Report] = []

    def report(self, report: Report) -> Go:
        """Write and send a report; return the daemon's answer, ``continue`` without a daemon.

        Raises:
            ValueError: The report is too large.
        """
        if self._successor is not None:
            self._kept.append(report)
            if self._successor.is_confirmed or len(self._kept) >= KEPT_BACK_MAX:
                return self.settle()
            return "continue"
        return self._send(report)

    def settle(self) -> Go:
        """Wait until this incarnation counts, and send the reports kept back; return the strongest answer."""
        if self._successor is None:
            return "continue"
        self._successor.confirm()
        self._successor = None
        told: set[Go] = {self._send(report) for report in self._kept}
        self._kept.clear()
        return next((go for go in ("leave", "yield", "save") if go in told), "continue")

    def _send(self, report: Report) -> Go:
        if self._fence.wait():
            return "leave"
        if self._log is None:
            self._log = self._open_log()
        self._log.append(report)
        failpoints.reach("report.written")
        go = self._channel.report(report)
        failpoints.reach("report.answered")
        return go


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

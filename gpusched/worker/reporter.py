"""What rank 0 does with a report: into the trial's own file, to the daemon, and back comes what to do.

A successor that does not count yet (``successor.py``) keeps its reports back: nobody may find in the file what was
trained from a checkpoint that was never committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpusched import failpoints
from gpusched.worker.channel import Channel, Go
from gpusched.worker.reports import ReportLog
from gpusched.worker.successor import Successor

KEPT_BACK_MAX = 10_000


class Reporter:
    """``open_log`` opens the trial's own file; called when nobody else writes to it any more."""

    def __init__(
        self, open_log: Callable[[], ReportLog], channel: Channel, successor: Successor | None
    ) -> None:
        self._open_log = open_log
        self._log: ReportLog | None = None if successor is not None else open_log()
        self._channel = channel
        self._successor = successor
        self._kept: list[tuple[int, float, Mapping[str, Any]]] = []

    def report(self, step: int, step_time_s: float, metrics: Mapping[str, Any]) -> Go:
        """Returns what the daemon says, ``continue`` where it says nothing.

        Raises:
            ValueError: The report is too large.
        """
        if self._successor is not None:
            self._kept.append((step, step_time_s, metrics))
            if self._successor.is_confirmed or len(self._kept) >= KEPT_BACK_MAX:
                return self.settle()
            return "continue"
        return self._send(step, step_time_s, metrics)

    def settle(self) -> Go:
        """Wait until this incarnation counts, and report what was kept back; what to do then."""
        if self._successor is None:
            return "continue"
        self._successor.confirm()
        self._successor = None
        told: set[Go] = {self._send(*one) for one in self._kept}
        self._kept.clear()
        return next((go for go in ("leave", "yield", "save") if go in told), "continue")

    def _send(self, step: int, step_time_s: float, metrics: Mapping[str, Any]) -> Go:
        if self._log is None:
            self._log = self._open_log()
        seq, _ = self._log.append(step, step_time_s, metrics)
        failpoints.reach("report.written")
        go = self._channel.report(seq, step, step_time_s, metrics)
        failpoints.reach("report.answered")
        return go

"""Events for tests, written flat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpusched.core.events import Outcome, Reported, TrialExited
from gpusched.protocol import Report


def reported(
    *,
    at: float,
    trial: int,
    incarnation: int = 1,
    seq: int,
    step: int,
    metric: float | None,
    step_time_s: float = 0.0,
    metrics: Mapping[str, Any] | None = None,
    **event: bool,
) -> Reported:
    """Make the event of a report."""
    report = Report(incarnation, seq, step, step_time_s, dict(metrics or {}))
    return Reported(at=at, trial=trial, report=report, metric=metric, **event)


def exited(
    outcome: Outcome, *, at: float = 0.0, trial: int = 0, incarnation: int = 1, **about: Any
) -> TrialExited:
    """Make the event of an incarnation's end."""
    return TrialExited(at=at, trial=trial, incarnation=incarnation, outcome=outcome, **about)

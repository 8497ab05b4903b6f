"""Which hyperparameters mattered."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpusched.journal.timeline import IncarnationTimeline, ReportedStep, TrialTimeline
from gpusched.protocol import Report
from gpusched.report.importance import importance


def trials(*given: tuple[dict[str, Any], float | None]) -> list[TrialTimeline]:
    return [
        TrialTimeline(
            n,
            hparams,
            [IncarnationTimeline(1, (), 0.0, [ReportedStep(1.0, Report(1, 1, 1), metric, None)])],
        )
        for n, (hparams, metric) in enumerate(given)
    ]


def test_importance_by_rank() -> None:
    found = importance(
        trials(
            *(
                ({"lr": 10.0**-n, "width": n, "act": "ab"[n % 2], "fixed": 1}, float(n) ** 3)
                for n in range(8)
            ),
            ({"lr": 7.0, "width": 99}, None),
        ),
        sign=1.0,
    )
    by_name = {one.name: one for one in found}
    assert [one.name for one in found] == ["lr", "width", "act"]
    assert (by_name["lr"].strength, by_name["lr"].direction) == (pytest.approx(1.0), -1)
    assert (by_name["width"].strength, by_name["width"].direction) == (pytest.approx(1.0), 1)
    assert by_name["lr"].trials == 8
    assert 0 < by_name["act"].strength < 0.5
    assert by_name["act"].direction == 0


def test_importance_where_less_is_better() -> None:
    (found,) = importance(trials(*(({"lr": n}, float(n)) for n in range(5))), sign=-1.0)
    assert found.direction == -1


def test_a_choice_that_decides_everything() -> None:
    given = [({"opt": "sgd"}, 1.0), ({"opt": "adam"}, 2.0)] * 3
    (found,) = importance(trials(*given), sign=1.0)
    assert found.strength == pytest.approx(1.0)


def test_too_few_or_equal_trials_say_nothing() -> None:
    assert importance(trials(({"lr": 1}, 1.0), ({"lr": 2}, 2.0)), sign=1.0) == []
    (flat,) = importance(trials(*(({"lr": n}, 1.0) for n in range(6))), sign=1.0)
    assert flat.strength == 0.0
    assert math.isfinite(flat.strength)

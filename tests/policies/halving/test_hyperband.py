"""``hyperband``: its brackets (Li et al., JMLR 2018, Algorithm 1, table 1); halving itself is tested with ``sha``."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.policies.halving.sha import Options, brackets
from tests.policies.hand import Hand


def test_table_1_of_the_hyperband_paper() -> None:
    """R = 81, eta = 3: n_i and r_i for s = 4 to 0."""
    assert [(plan.sizes, plan.milestones) for plan in brackets(1, 81, 3.0)] == [
        ((81, 27, 9, 3, 1), (1, 3, 9, 27, 81)),
        ((34, 11, 3, 1), (3, 9, 27, 81)),
        ((15, 5, 1), (9, 27, 81)),
        ((8, 2), (27, 81)),
        ((5,), (81,)),
    ]


def test_r_limits_the_most_aggressive_bracket() -> None:
    """s_max = floor(log_eta(R / r))."""
    assert [plan.name for plan in brackets(9, 81, 3.0)] == [
        "bracket s=2",
        "bracket s=1",
        "bracket s=0",
    ]
    assert next(plan.milestones for plan in brackets(9, 81, 3.0)) == (9, 27, 81)
    assert next(plan.milestones for plan in brackets(5, 81, 3.0)) == (9, 27, 81)


def play(hand: Hand, until: int) -> None:
    """The trial with the lowest number reports, until so many trials were begun."""
    while hand.count < until and hand.finished is None:
        trial = hand.live[0]
        hand.report(trial, 0.01 * trial)


@pytest.mark.parametrize(("options", "named"), [({"R": None}, "R"), ({"r": 0}, "r")])
def test_bad_options_are_named(options: dict[str, Any], named: str) -> None:
    assert [name for name, _ in Options(**options).problems()] == [named]

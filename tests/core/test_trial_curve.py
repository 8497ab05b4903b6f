"""A curve is a sequence of (step, metric), whatever it is kept in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.trial import Curve

REPORTS = st.lists(st.tuples(st.integers(0, 1 << 40), st.floats()))


def of(reports: Sequence[tuple[int, float]]) -> Curve:
    curve = Curve()
    for step, metric in reports:
        curve.add(step, metric)
    return curve


@given(REPORTS, st.integers(-5, 5), st.integers(-5, 5))
def test_it_is_what_was_reported(reports: list[tuple[int, float]], first: int, last: int) -> None:
    curve, texts = of(reports), [repr(one) for one in reports]
    assert len(curve) == len(reports)
    assert [repr(one) for one in curve] == texts
    assert [repr(one) for one in reversed(curve)] == texts[::-1]
    assert [repr(one) for one in curve[first:last]] == texts[first:last]
    assert [repr(curve[at]) for at in range(-len(reports), len(reports))] == texts * 2


def test_two_of_the_same_reports_are_equal() -> None:
    assert of([(1, 0.5), (2, math.nan)]) == of([(1, 0.5), (2, math.nan)])
    assert of([(1, 0.5)]) != of([(1, 0.25)])
    assert of([(1, 0.5)]) != of([(2, 0.5)])
    assert of([(1, 0.5)]) != [(1, 0.5)]

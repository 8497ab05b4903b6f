"""s(a) from a table, by name and learnt, and what counts as a measurement of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.speed import Speed

finite = st.floats(0, 1e6, allow_nan=False)


def test_a_table_is_straight_between_its_points_and_level_beyond() -> None:
    speed = Speed({2: 1.8, 4: 3.0, 8: 5.4})
    assert [speed.s(atoms) for atoms in (1, 2, 3, 4, 6, 8, 16)] == pytest.approx(
        [1.0, 1.8, 2.4, 3.0, 4.2, 5.4, 5.4]
    )


def amdahl(fraction: float, atoms: int) -> float:
    return fraction + (1 - fraction) / atoms


@pytest.mark.parametrize("fraction", [0.0, 0.03, 0.2, 0.5, 1.0])
def test_learning_recovers_a_known_serial_fraction(fraction: float) -> None:
    speed = Speed("auto")
    for before, after in ((1, 2), (2, 4), (4, 1), (3, 8), (8, 2)):
        took_s = [7.0 * amdahl(fraction, atoms) for atoms in (before, after)]
        speed.saw_resize(before, took_s[0], after, took_s[1])
    for atoms in (1, 2, 4, 8):
        assert speed.s(atoms) == pytest.approx(1 / amdahl(fraction, atoms))


def test_two_resizes_teach_that_more_atoms_are_slower() -> None:
    """Believed 1.9 on two atoms, measured 0.4 to 1.0: the prior outvoted what was measured, and s(a) was at least 1."""
    speed = Speed("auto")
    for _ in range(2):
        speed.saw_resize(1, 1.0, 2, 1.25)
    assert speed.s(2) == pytest.approx(0.8)


@pytest.mark.parametrize("scaling", ["linear", {2: 1.5}])
def test_what_the_recipe_says_is_not_learnt_over(scaling: str | dict[int, float]) -> None:
    speed = Speed(scaling)
    before = speed.s(2)
    speed.saw_resize(1, 1.0, 2, 1.0)
    assert speed.s(2) == before


@given(st.integers(1, 16), finite, st.integers(1, 16), finite)
def test_no_measurement_breaks_the_arithmetic(a: int, before: float, b: int, after: float) -> None:
    speed = Speed("auto")
    speed.saw_resize(a, before, b, after)
    for atoms in range(1, 17):
        assert 1.0 - 1e-9 <= speed.s(atoms) <= atoms + 1e-9

"""HyperDrive (Middleware'17): S_desired, S_deserved and S_effective (section 3.2), and normalised metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from gpusched.core.trial import TrialRecord
from gpusched.policies import pop
from gpusched.policies.base import Scale, curve_of
from gpusched.policies.pop import Known


def split(slots: int, probabilities: Sequence[float]) -> list[int]:
    known = {trial: Known(p, 0.0, 10) for trial, p in enumerate(probabilities)}
    return pop.split(known, slots)


def by_hand(slots: int, probabilities: Sequence[float]) -> int:
    """The definition: of all p, the largest S_effective = min(N_satisfying(p), S * p), rounded down."""
    effective = [min(sum(q >= p for q in probabilities), slots * p) for p in probabilities]
    return int(max(effective, default=0.0) + 1e-9)


def test_the_shorter_remaining_time_comes_first_at_the_same_p() -> None:
    """3.1: "the smallest expected remaining time to achieve the target performance and .. high prediction quality"."""
    known = {trial: Known(0.5, ert_s, 10) for trial, ert_s in enumerate([30.0, 10.0, 20.0])}
    assert pop.split(known, 4) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_the_split_is_what_the_definition_says(seed: int) -> None:
    random = Random(seed)
    slots = random.randint(1, 40)
    probabilities = [round(random.random(), 2) for _ in range(random.randint(0, 60))]
    promising = split(slots, probabilities)
    assert promising == sorted(promising, key=lambda n: (-probabilities[n], n))
    assert len(promising) == by_hand(slots, probabilities)


# ---------------------------------------------------------------- normalised metrics and curves (equation 4)


def test_equation_4() -> None:
    scale = Scale(-500.0, 300.0, 1.0)
    assert scale.of_metric(200.0) == pytest.approx(0.875)
    assert scale.metric(0.875) == pytest.approx(200.0)


def test_what_lies_beyond_the_bounds_counts_as_the_bound() -> None:
    scale = Scale(0.0, 1.0, 1.0)
    assert (scale.of_metric(-3.0), scale.of_metric(3.0)) == (0.0, 1.0)
    assert scale.of_score(-math.inf) == 0.0


def test_a_curve_has_the_latest_value_of_each_report_that_was_finite() -> None:
    nan = math.nan
    reports = [(10, nan), (20, 0.2), (30, 0.3), (20, 0.25), (30, 0.35), (40, nan), (60, 0.6)]
    trial = TrialRecord(0, {}, curve=reports, furthest_step=60)
    assert curve_of(trial, Scale(0.0, 1.0, 1.0)) == ((0.25, 0.35, 0.6), 20.0)

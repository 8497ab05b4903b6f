"""SEER's plan (SoCC'21): Algorithms 2 and 3, section 3.4 to the digit, and how a plan is cut to a box."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from gpusched.policies.seer_plan import (
    Arguments,
    Plan,
    bracket_count,
    fitting_plan,
    largest_R,
    make_plan,
)


@pytest.fixture
def example() -> Plan:
    """Section 3.4: T = 10 minutes, B = 80 atom-minutes, eta = 2, everything else as by default."""
    plan = make_plan(Arguments(10.0, 80.0, eta=2.0))
    assert plan is not None
    return plan


# ---------------------------------------------------------------- section 3.4


def test_section_3_4_R_K_t1_B0(example: Plan) -> None:
    """ "R* = 5.714, K = 3, t1 = 1.42, and B0 = 17.142", q* = 2 (1.4286 is cut, not rounded, in the paper)."""
    R = largest_R(10.0, 80.0, eta=2.0, p_min=1, t_min=1.0)
    assert pytest.approx(5.714, abs=5e-4) == R
    assert example.stages == 3
    assert example.first_stage_min == pytest.approx(1.4286, abs=5e-5)
    assert bracket_count(80.0, R * example.stages, 2.0) == 2


def test_section_3_4_rounds(example: Plan) -> None:
    """ "8 trials with 1 GPU and 4 with 2", then 4 and 2, then two with 1 and one with 2, until 9.94 min."""
    sizes = [[example.size(b, stage) for b in example.brackets] for stage in (1, 2, 3)]
    assert sizes == [[8, 4], [4, 2], [2, 1]]
    ends = [example.stage_end_min(stage) for stage in (1, 2, 3)]
    assert ends == pytest.approx([1.4286, 4.2857, 10.0], abs=1e-4)
    assert example.peak == 16
    assert example.used_budget <= 80.0


# ---------------------------------------------------------------- Algorithm 2, line 2


def fits(R: float, T: float, B: float, eta: float, p_min: int, t_min: float) -> bool:
    stages = math.ceil(math.log(R, eta) - 1e-12)
    time = R * eta / (eta - 1) * (1 - eta**-stages)
    return time <= T / t_min * (1 + 1e-9) and p_min * R * stages <= B / t_min * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_R_is_the_largest_that_meets_both_conditions(seed: int) -> None:
    random = Random(seed)
    T, B = random.uniform(1, 500), random.uniform(1, 5000)
    eta, p_min, t_min = random.choice([1.5, 2.0, 3.0, 4.0]), random.randint(1, 4), random.random()
    R = largest_R(T, B, eta, p_min, t_min)
    if R <= 1:
        assert not fits(1.0 + 1e-6, T, B, eta, p_min, t_min)
        return
    assert fits(R, T, B, eta, p_min, t_min)
    for more in (1.0001, 1.01, 1.5, 4.0):
        assert not fits(R * more, T, B, eta, p_min, t_min)


@pytest.mark.parametrize("seed", range(40))
def test_fact_1_neither_deadline_nor_budget_is_exceeded(seed: int) -> None:
    """ "Algorithm 3 completes in time at most T and expends resource-time at most B"."""
    random = Random(seed)
    T, B = random.uniform(1, 500), random.uniform(1, 5000)
    p_max = random.choice([None, 1, 3, 8])
    plan = make_plan(
        Arguments(T, B, eta=random.choice([2.0, 4.0]), nu=random.choice([1.5, 2.0]), p_max=p_max)
    )
    if plan is not None:
        assert plan.stage_end_min(plan.stages) <= T * (1 + 1e-9)
        assert plan.used_budget <= B * (1 + 1e-9)
        assert all(p_max is None or b.atoms <= p_max for b in plan.brackets)


# ---------------------------------------------------------------- Algorithm 3


def test_p_max_leaves_fewer_brackets_with_the_budget_shared_evenly() -> None:
    """Lines 6 and 7: "remove brackets and add trials": P = [1, 2, 4 = p_max], B / 3 each for K = 3 stages of t1."""
    plan = make_plan(Arguments(10.0, 2000.0, eta=2.0, p_max=4))
    each = 2000.0 / 3 / (3 * plan.first_stage_min)
    assert [(b.atoms, b.trials) for b in plan.brackets] == [(n, int(each / n)) for n in (1, 2, 4)]


# ---------------------------------------------------------------- on a box


@pytest.mark.parametrize("atoms", range(1, 40))
def test_a_plan_is_cut_to_the_largest_budget_that_fits(atoms: int) -> None:
    given = Arguments(30.0, 30.0 * atoms, p_max=atoms)
    plan = fitting_plan(atoms, given)
    assert 0 < plan.peak <= atoms
    for share in (1.02, 1.2, 2.0):
        richer = make_plan(replace(given, budget=plan.budget * share))
        if plan.budget * share <= 30.0 * atoms:
            assert richer.peak > atoms

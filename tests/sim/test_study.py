"""Whole runs: what can be computed by hand comes out, the orientation figures of the literature do, and runs repeat."""

from __future__ import annotations

import math
import statistics

import pytest

from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import run_all, simulate
from gpusched.sim.workload import Synthetic

STEADY = """
SPACE = {"level": {"uniform": [0, 1]}}
STEP_TIME = 2.0
def flat(hp, step):
    return hp["level"] + step
"""


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    file = tmp_path_factory.mktemp("workload") / "steady.py"
    file.write_text(STEADY)
    return f"{file}:flat"


def test_score_is_the_paper_s():
    hparams = {"b0_quantile": 1 - math.exp(-2.0), "b1": 0.25, "b2": 0.5}  # b0 = 0.2
    curve = Synthetic().curve(0, hparams, 0)
    assert curve.metric(100) == pytest.approx((2 - (1 / (0.2 + 0.025 + 0.5) + 0.005)) / 2)
    assert curve.step_time_s(7) == 0.1


def test_fifo_by_hand(steady):
    """4 atoms, 10 steps of 2 s each: in 100 s every atom trains five trials to the end."""
    setup = Setup(policy="fifo", options={"R": 10}, workload=steady, atoms=4, deadline_s=100.0)
    result = simulate(setup, check=True)
    assert (result.trials, result.steps, result.launches) == (20, 200, 20)
    assert result.top_steps == 10
    assert result.device_s == pytest.approx(400)


@pytest.mark.parametrize("save_s", [0.0, 0.1])
@pytest.mark.parametrize("policy", ["fifo", "asha", "bandit", "seer", "hypersched"])
def test_the_best_model_on_disk_is_the_best_one_reported(policy, save_s):
    for seed in range(6):
        delays = Delays(launch_s=0.1, save_s=save_s, exit_s=0.05)
        result = simulate(Setup(policy=policy, deadline_s=10.0, seed=seed, delays=delays))
        assert result.best == max(metric for _, metric in result.history)


def test_scaling_divides_the_step_time(steady):
    # One step more where it ends before the last call, 1.5 s after the deadline.
    for scaling, steps in (("linear", 201), ("sqrt", 101), ("none", 50), ("resnet18", 172)):
        setup = Setup(
            policy="fifo",
            options={"R": 1000},
            sizes=(4,),
            workload=steady,
            atoms=4,
            scaling=scaling,
            deadline_s=100.0,
        )
        assert simulate(setup).steps == steps


def test_a_run_repeats_exactly_and_in_other_processes():
    setups = [
        Setup(policy=policy, deadline_s=6.0, seed=seed)
        for policy in ("asha", "hypersched")
        for seed in range(3)
    ]
    here = run_all(setups, simulate, jobs=1)
    assert here == run_all(setups, simulate, jobs=2)
    assert len({result.best for result in here}) > 3


@pytest.mark.parametrize(("policy", "expected"), [("hypersched", 0.75), ("asha", 0.465)])
def test_orientation_figures(policy, expected):
    """N 8, T 15, linear, 10 seeds; the standard deviation of one run is about 0.08."""
    options = {"r": 5, "R": 500, "eta": 4.0}
    setups = [
        Setup(policy=policy, options=options, atoms=8, deadline_s=15.0, seed=seed)
        for seed in range(10)
    ]
    best = [result.best for result in run_all(setups, simulate, jobs=1)]
    assert statistics.fmean(best) == pytest.approx(expected, abs=0.04)

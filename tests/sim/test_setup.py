"""From the command line to runs: options, and all problems at once."""

from __future__ import annotations

import math

import pytest

from gpusched.errors import InputError
from gpusched.sim.physics import Delays, parse_scaling
from gpusched.sim.setup import Setup, plan, read_delays
from gpusched.sim.study import Mean


def problems(policies=("hypersched",), overrides=None, seeds=10, **base):
    with pytest.raises(InputError) as error:
        plan(Setup(**base), policies, overrides or {}, seeds)
    return str(error.value).splitlines()


def test_every_policy_runs_on_every_seed():
    setups = plan(Setup(seed=7, deadline_s=60.0, scaling="resnet50"), ["asha", "fifo"], {}, 3)
    policies = [(setup.policy, setup.seed) for setup in setups]
    assert policies == [(policy, seed) for policy in ("asha", "fifo") for seed in (7, 8, 9)]
    assert read_delays(60.0, "5%") == Delays(launch_s=3.0, resize_s=3.0)


def test_options_come_from_the_workload_and_from_set():
    setups = plan(Setup(), ["asha", "hypersched", "fifo"], {"eta": 3, "cooldown": 1}, 1)
    asha, hypersched, fifo = (setup.options for setup in setups)
    assert (asha["r"], asha["R"], asha["eta"]) == (5, 500, 3)
    assert (hypersched["r"], hypersched["eta"], hypersched["cooldown"]) == (5, 3, 1)
    assert fifo["R"] == 500
    assert "eta" not in fifo


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"policies": ["hypersche"]}, "unknown policy 'hypersche'; did you mean hypersched?"),
        ({"overrides": {"eta": "much"}}, "hypersched.eta"),
        ({"atoms": 0}, "--atoms must be at least 1"),
        ({"scaling": "cubic"}, "one of linear, sqrt, none"),
        ({"seeds": 0}, "--seeds must be at least 1"),
        ({"sampler": "grid"}, "--sampler: grid lists all configurations, but b0_quantile is drawn"),
        ({"sizes": (16,)}, "the smallest trial has 16 atoms"),
        ({"workload": "synthtic"}, "did you mean synthetic?"),
        ({"policies": ["seer"], "overrides": {"B": 0.01}}, "a trial needs 1 atom for t_min"),
        ({"policies": ["pop"], "overrides": {"metric_max": None}}, "metric_min and metric_max go"),
        ({"policies": ["pop"], "target": 7.0}, "pop.metric_max: the target 7 must lie within"),
    ],
)
def test_bad_input_is_one_clear_line(request_, message):
    (line,) = problems(**request_)
    assert message in line


def test_scalings():
    assert parse_scaling("resnet50")[1](8) == 5.6
    assert parse_scaling("resnet50")[1](6) == pytest.approx((3.42 + 5.6) / 2)
    assert parse_scaling("resnet50")[1](16) == 5.6


def test_intervals():
    """The 95% interval of Student's t; 2.776 is the table's value for four degrees of freedom."""
    mean = Mean.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean.mean, mean.count) == (3.0, 5)
    assert mean.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=1e-3)
    assert str(Mean.of([0.5])) == "0.5"
    assert str(Mean.of([800.0, 900.0, 1000.0])) == "900 ± 248"
    assert str(Mean.of([])) == "-"
    assert str(Mean.of([2.0, 2.0])) == "2"

"""From the command line to runs: grids, options, and all problems at once."""

from __future__ import annotations

import math

import pytest

from gpusched.errors import InputError
from gpusched.sim.physics import parse_scaling
from gpusched.sim.setup import Request, plan
from gpusched.sim.study import Mean


def problems(**request):
    with pytest.raises(InputError) as error:
        plan(Request(**request))
    return str(error.value).splitlines()


def test_every_policy_runs_on_every_seed():
    more = {"deadline": "1m", "scaling": "resnet50", "delay": "5%"}
    setups = plan(Request(policies=["asha", "fifo"], seeds=3, first_seed=7, **more))
    policies = [(setup.policy, setup.seed) for setup in setups]
    assert policies == [(policy, seed) for policy in ("asha", "fifo") for seed in (7, 8, 9)]
    assert (setups[0].deadline_s, setups[0].delays.launch_s, setups[0].delays.resize_s) == (
        60,
        3,
        3,
    )


def test_options_come_from_the_workload_and_from_set():
    setups = plan(
        Request(
            policies=["asha", "hypersched", "fifo"],
            overrides=["eta=3", "hypersched.r=2", "cooldown=1"],
            seeds=1,
        )
    )
    asha, hypersched, fifo = (setup.options for setup in setups)
    assert (asha["r"], asha["R"], asha["eta"]) == (5, 500, 3)
    assert (hypersched["r"], hypersched["eta"], hypersched["cooldown"]) == (2, 3, 1)
    assert fifo["R"] == 500
    assert "eta" not in fifo


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"policies": ["hypersche"]}, "unknown policy 'hypersche'; did you mean hypersched?"),
        ({"policies": ["fifo"], "overrides": ["eta=3"]}, "unknown option of fifo; known are R"),
        ({"overrides": ["cooldwn=3"]}, "did you mean cooldown"),
        ({"overrides": ["eta=much"]}, "hypersched.eta"),
        ({"overrides": ["eta=0.5"]}, "must be more than 1"),
        ({"overrides": ["r=600"]}, "lies beyond R"),
        ({"overrides": ["eta"]}, "write key=value"),
        ({"overrides": ["asha.eta=3"]}, "not simulated here"),
        ({"overrides": ["eta=[1"]}, "not YAML"),
        ({"atoms": 0}, "--atoms must be from 1 to"),
        ({"deadline": "soon"}, "is not a duration"),
        ({"scaling": "cubic"}, "one of linear, sqrt, none"),
        ({"delay": "-1"}, "must be 0 or more"),
        ({"delay": "fast"}, "is not a delay"),
        ({"seeds": 0}, "--seeds must be at least 1"),
        ({"more": {"sizes": (16,)}}, "the smallest trial has 16 atoms"),
        ({"workload": "synthtic"}, "did you mean synthetic?"),
        ({"policies": ["seer"], "overrides": ["B=0.01"]}, "a trial needs 1 atom for t_min"),
        ({"policies": ["pop"], "overrides": ["metric_max=null"]}, "metric_min and metric_max go"),
        ({"policies": ["pop"], "more": {"target": 7.0}}, "must lie within the metric's bounds"),
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

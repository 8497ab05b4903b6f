"""Workloads of the reader's own; what is wrong with them is said in one message. A kept run and its delays."""

from __future__ import annotations

import pytest

from gpusched.core.commands import Launch
from gpusched.core.events import DevicesJoined
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.journal.rows import Entry
from gpusched.sim.continuing import measured_delays
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import simulate
from gpusched.sim.workload import load_workload
from scripts.kept import simulate_into
from tests.events import reported
from tests.faults import Faults, FaultySetup

DELAYS = Delays(launch_s=0.5, resize_s=0.8, save_s=0.05, exit_s=0.1, release_s=0.2)


def test_what_a_record_measures(tmp_path):
    setup = FaultySetup(
        policy="hypersched",
        options={"r": 5, "R": 100, "eta": 4.0},
        deadline_s=15.0,
        seed=3,
        delays=DELAYS,
        faults=Faults(lost=0.01, crash=0.001),
        scaling="sqrt",
    )
    _, folder = simulate_into(tmp_path, setup)
    found = measured_delays(timeline.read(ExperimentPaths(folder).journal))
    for name in ("launch_s", "resize_s", "save_s", "exit_s", "release_s"):
        assert getattr(found, name) == pytest.approx(getattr(DELAYS, name))


def test_steps_of_a_first_report_are_no_part_of_the_launch():
    """Reports every 100 iterations: 99 of them counted as the launch."""
    first = reported(at=7.0, trial=0, seq=1, step=100, metric=0.5, step_time_s=0.05)
    joined = DevicesJoined(at=0.0, devices=("d0",))
    entries = [Entry(1, joined, [Launch(0, 1, ("d0",), {})]), Entry(2, first, [])]
    assert measured_delays(timeline.timeline(entries)).launch_s == pytest.approx(2.0)


# ---------------------------------------------------------------- functions


def function(tmp_path, text, name="f"):
    file = tmp_path / "own.py"
    file.write_text(text)
    return f"{file}:{name}"


def test_a_function_of_ones_own(tmp_path):
    text = """
SPACE = {"lr": {"uniform": [0.1, 1.0]}}
METRIC, MODE, STEP_TIME = "loss", "min", 0.5
def f(hp, step, random):
    return 1 / (hp["lr"] * step) + random.uniform(0, 0.1), 0.25
"""
    name = function(tmp_path, text)
    workload = load_workload(name)
    assert (workload.metric, workload.mode) == ("loss", "min")
    curve, again = (workload.curve(0, {"lr": 0.5}, 7) for _ in range(2))
    assert [curve.metric(k) for k in (3, 1, 2)] == [again.metric(k) for k in (3, 1, 2)]
    assert curve.metric(1) != workload.curve(1, {"lr": 0.5}, 7).metric(1)
    assert curve.step_time_s(1) == 0.25
    result = simulate(Setup(workload=name, deadline_s=30.0), check=True)
    assert 0 < result.best < 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def g(hp, step): return 1", "this file has no function 'f'; there are g"),
        ("def f(hp): return 1", "must take"),
        ("def f(hp, step): return 1\nSTEP_TIME = 0", "STEP_TIME must be more than 0"),
        ("def f(hp, step): return 1\nMODE = 'up'", "MODE must be"),
        ("def f(hp, step): return 1\nSPACE = {'x': {'unifrom': [0, 1]}}", "SPACE: x"),
        ("def f(hp, step) return 1", "cannot be imported: SyntaxError"),
        ("import a_module_that_is_not", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        load_workload(function(tmp_path, text))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(hp, step): return 1 / 0", ": ZeroDivisionError: division by zero"),
        ("def f(hp, step): return 'high'", "it returned 'high'"),
        ("def f(hp, step): return 1, -1", "the step time at step 1 must be more than 0"),
    ],
)
def test_what_is_wrong_when_it_is_called(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        simulate(Setup(workload=function(tmp_path, text), deadline_s=5.0))
    assert message in str(error.value)


@pytest.mark.parametrize("returned", ["None", "float('nan')", "float('inf')"])
def test_a_metric_that_is_not_finite_is_no_crash(tmp_path, returned):
    name = function(tmp_path, f"def f(hp, step): return {returned}")
    assert simulate(Setup(workload=name, deadline_s=5.0), check=True).best is None

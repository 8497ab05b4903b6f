"""The simulated machine: what it answers to commands."""

from __future__ import annotations

import itertools

import pytest

from gpusched.core.commands import Kill, Launch, Save, Yield
from gpusched.core.events import Event, Reported, TrialExited, TrialUp
from gpusched.executors.base import FOREVER
from gpusched.sim.executor import SimExecutor, Stalled
from gpusched.sim.physics import Delays, SimulatedCurve
from tests.executors.contract import ExecutorContract, Rig


class Flat:
    """A second a step on one atom; the metric is the step."""

    metric, mode, space, defaults = "score", "max", {"x": 1}, {}

    def curve(self, trial, hparams, seed):
        return SimulatedCurve(float, lambda step: 1.0)


def machine(**more):
    return SimExecutor(Flat(), 2, **more)


def launch(executor, incarnation=1):
    executor.execute(Launch(0, incarnation, ("sim:0",), {}))


def events(executor, count, *, answer=True):
    """The next ``count`` events; reports are answered as they come."""
    found: list[Event] = []
    while len(found) < count:
        for event in executor.poll(FOREVER):
            found.append(event)
            if answer and isinstance(event, Reported):
                executor.acknowledge(event)
    return found


def told(event):
    """An event as a short tuple: (kind, at, what matters)."""
    match event:
        case Reported():
            return "report", event.at, event.step
        case TrialExited():
            return "exit", event.at, event.outcome, event.saved_step
        case TrialUp():
            return "up", event.at
    return event


def test_poll_stops_at_until_and_time_never_goes_back():
    executor = machine()
    launch(executor)
    assert told(executor.poll(0.5)[0]) == ("up", 0.0)
    assert executor.poll(0.5) == []
    assert executor.now() == 0.5
    assert executor.poll(0.25) == []
    assert executor.now() == 0.5
    assert told(executor.poll(1.0)[0]) == ("report", 1.0, 1)
    with pytest.raises(Stalled):
        executor.poll(FOREVER)  # the report is not answered


def test_leaving_without_a_checkpoint_begins_again_at_the_first_step():
    executor = machine()
    launch(executor)
    report = events(executor, 2, answer=False)[1]
    executor.execute(Yield(0, 1, False))
    executor.acknowledge(report)
    assert told(events(executor, 1)[0]) == ("exit", 1.0, "yielded", None)
    launch(executor, incarnation=2)
    again = events(executor, 2)[1]
    assert (again.step, again.seq) == (1, 2)


def test_kill_leaves_no_report_behind_and_no_half_checkpoint():
    executor = machine(delays=Delays(save_s=5.0))
    launch(executor)
    report = events(executor, 2, answer=False)[1]
    executor.execute(Save(0, 1))
    executor.acknowledge(report)
    executor.execute(Kill(0, 1, 5.0))
    executor.execute(Kill(0, 1, 5.0))
    assert told(events(executor, 1)[0]) == ("exit", 1.0, "killed", None)
    executor.poll(100.0)
    assert executor.poll(100.0) == []


# ---------------------------------------------------------------- the contract of all executors


class Scripted:
    """Does what its hyperparameters say: ``steps`` steps of 0.1 s, and fails in step ``fails_at``."""

    metric, mode, space, defaults = "accuracy", "max", {}, {}

    def curve(self, trial, hparams, seed):
        fails_at = hparams.get("fails_at")
        length = hparams["steps"] if fails_at is None else fails_at - 1
        ending = "finished" if fails_at is None else "failed"
        return SimulatedCurve(lambda step: 0.1 * step, lambda step: 0.1, length, ending)


class TestSimExecutor(ExecutorContract):
    """Everything is in ``contract.py``."""

    @pytest.fixture
    def rig(self) -> Rig:
        numbers = itertools.count()
        executor = SimExecutor(Scripted(), 4)
        return Rig(executor, lambda: next(numbers), lambda steps, **more: {"steps": steps, **more})

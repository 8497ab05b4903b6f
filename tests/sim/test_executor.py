"""The simulated machine: what it answers to commands, and that a driver can be replaced under it."""

from __future__ import annotations

import itertools

import pytest

from gpusched.core.commands import Kill, Launch, Save, Yield
from gpusched.core.events import Event, Reported, TrialExited, TrialUp
from gpusched.executors.base import FOREVER, LiveTrial
from gpusched.sim.executor import SimExecutor, Stalled
from gpusched.sim.physics import Delays, SimulatedCurve
from tests.executors.contract import ExecutorContract, Rig
from tests.faults import FaultyExecutor, Incident


class Flat:
    """A second a step on one atom; the metric is the step."""

    metric, mode, space, defaults = "score", "max", {"x": 1}, {}

    def curve(self, trial, hparams, seed):
        return SimulatedCurve(float, lambda step: 1.0)


def machine(atoms=2, **more):
    return FaultyExecutor(Flat(), atoms, **more)


def launch(executor, trial=0, devices=("sim:0",), incarnation=1):
    executor.execute(Launch(trial, incarnation, devices, {}))


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


# ---------------------------------------------------------------- a daemon that dies


def test_reconcile_tells_what_a_new_driver_has_missed():
    executor = machine(3, incidents=[Incident(at=1.5, kind="lost", trial=1, reason="gone")])
    launch(executor, 0, ("sim:0",))
    launch(executor, 1, ("sim:1",))
    missed = events(executor, 4)
    assert [event.step for event in missed if isinstance(event, Reported)] == [1, 1]
    events(executor, 1)  # trial 1 is lost
    found = executor.reconcile(
        [
            LiveTrial(0, 1, ("sim:0",), last_seq=1),
            LiveTrial(1, 1, ("sim:1",), last_seq=0),
            LiveTrial(2, 1, ("sim:2",), last_seq=0),
        ]
    )
    assert [told(event) for event in found] == [
        ("report", 1.5, 1),
        ("exit", 1.5, "lost", None),
        ("exit", 1.5, "lost", None),
    ]
    assert [event.trial for event in found] == [1, 1, 2]
    assert told(events(executor, 1)[0]) == ("report", 2.0, 2)  # trial 0 just goes on


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

"""The simulated machine: what it answers to commands, and that a driver can be replaced under it."""

from __future__ import annotations

from random import Random

import pytest

from gpusched import policies
from gpusched.core.commands import ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DeviceQuarantined,
    DeviceReadmitted,
    DevicesReleased,
    Event,
    Reported,
    TrialExited,
    TrialUp,
)
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.driver.loop import Driver, replay
from gpusched.executors.base import FOREVER, LiveTrial
from gpusched.journal.log import Journal
from gpusched.sim.executor import SimExecutor, Stalled
from gpusched.sim.physics import Delays, Noise
from gpusched.sim.study import start
from gpusched.sim.workload import SimulatedCurve, Synthetic
from tests.faults import Faults, FaultyExecutor, Incident

HPARAMS = {"b0_quantile": 0.5, "b1": 0.5, "b2": 0.5}


class Flat:
    """A second a step on one atom; the metric is the step. ``length``: the script's own end."""

    name, metric, mode, defaults = "flat", "score", "max", {}

    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def space(self, seed):
        return {"x": 1}

    def curve(self, trial, hparams, seed):
        return SimulatedCurve(lambda step: float(step), lambda step: 1.0, self.length)


def machine(atoms=2, *, length=None, **more):
    return FaultyExecutor(Flat(length), atoms, **more)


def launch(executor, trial=0, devices=("sim:0",), incarnation=1):
    executor.execute(Launch(trial, incarnation, devices, HPARAMS))


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
        case CheckpointSaved():
            return "saved", event.at, event.step
        case DevicesReleased():
            return "released", event.at, event.devices
        case TrialUp():
            return "up", event.at
    return event


def test_launch_trains_and_waits_for_the_answer():
    executor = machine(delays=Delays(launch_s=2.0))
    launch(executor)
    up, report = events(executor, 2, answer=False)
    assert told(up) == ("up", 2.0)
    assert told(report) == ("report", 3.0, 1)
    assert (report.seq, report.metric, report.report.step_time_s) == (1, 1.0, 1.0)
    assert report.report.metrics == {"score": 1.0}
    with pytest.raises(Stalled):
        executor.poll(FOREVER)
    executor.acknowledge(report)
    assert told(executor.poll(FOREVER)[0]) == ("report", 4.0, 2)


def test_poll_stops_at_until_and_time_never_goes_back():
    executor = machine()
    launch(executor)
    assert told(executor.poll(0.5)[0]) == ("up", 0.0)
    assert executor.poll(0.5) == []
    assert executor.now() == 0.5
    assert executor.poll(0.25) == []
    assert executor.now() == 0.5
    assert told(executor.poll(1.0)[0]) == ("report", 1.0, 1)


def test_events_of_one_moment_come_together_in_order():
    executor = machine()
    launch(executor, 0, ("sim:0",))
    launch(executor, 1, ("sim:1",))
    assert [event.trial for event in executor.poll(FOREVER)] == [0, 1]  # up
    assert [event.trial for event in executor.poll(FOREVER)] == [0, 1]  # reports


def test_steps_are_faster_on_more_atoms():
    executor = SimExecutor(Synthetic(), 4)
    executor.execute(Launch(0, 1, ("sim:0", "sim:1", "sim:2", "sim:3"), HPARAMS))
    _, report = events(executor, 2)
    assert report.at == pytest.approx(0.025)
    assert report.report.step_time_s == pytest.approx(0.025)


def test_yield_with_checkpoint_then_resume_behind_it():
    delays = Delays(save_s=0.5, exit_s=0.25, release_s=0.125, resize_s=3.0)
    executor = machine(delays=delays)
    launch(executor)
    report = events(executor, 2, answer=False)[1]
    executor.execute(Yield(0, 1, True))
    executor.acknowledge(report)
    assert [told(event) for event in events(executor, 2)] == [
        ("saved", 1.5, 1),
        ("exit", 1.75, "yielded", 1),
    ]
    executor.execute(ConfirmRelease(("sim:0",)))
    assert told(events(executor, 1)[0]) == ("released", 1.875, ("sim:0",))
    launch(executor, incarnation=2)
    assert [told(event) for event in events(executor, 2)] == [
        ("up", 4.875),
        ("report", 5.875, 2),
    ]
    assert executor.device_s == pytest.approx(1.875)


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


def test_save_goes_on_after_the_checkpoint():
    executor = machine(delays=Delays(save_s=0.5))
    launch(executor)
    report = events(executor, 2, answer=False)[1]
    executor.execute(Save(0, 1))
    executor.acknowledge(report)
    assert [told(event) for event in events(executor, 2)] == [
        ("saved", 1.5, 1),
        ("report", 2.5, 2),
    ]
    executor.execute(KeepBest(0, 1, 1.0))
    assert executor.kept == KeepBest(0, 1, 1.0)


def test_a_best_model_without_a_checkpoint_is_noticed():
    executor = machine()
    launch(executor)
    events(executor, 2)
    with pytest.raises(AssertionError, match="saved"):
        executor.execute(KeepBest(0, 1, 1.0))


def test_yield_that_comes_between_reports_answers_the_next():
    executor = machine()
    launch(executor)
    events(executor, 2)
    executor.execute(Yield(0, 1, False))
    executor.execute(Save(0, 1))
    assert [told(event) for event in events(executor, 3)] == [
        ("report", 2.0, 2),
        ("saved", 2.0, 2),
        ("exit", 2.0, "yielded", 2),
    ]


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


def test_commands_for_an_old_incarnation_do_nothing_and_a_launch_twice_is_one():
    executor = machine()
    launch(executor)
    launch(executor)
    assert executor.launches == 1
    executor.execute(Kill(0, 7, 0.0))
    executor.execute(Yield(3, 1, True))
    assert [told(event)[0] for event in events(executor, 3)] == ["up", "report", "report"]


def test_a_second_trial_on_a_device_is_noticed():
    executor = machine(delays=Delays(release_s=2.0))
    launch(executor)
    with pytest.raises(AssertionError, match="in use"):
        launch(executor, 1)
    executor.execute(Kill(0, 1, 0.0))
    events(executor, 1)
    with pytest.raises(AssertionError, match="not clean"):
        launch(executor, 2)


def test_a_script_that_ends_by_itself():
    executor = machine(length=2)
    launch(executor)
    assert [told(event) for event in events(executor, 4)][1:] == [
        ("report", 1.0, 1),
        ("report", 2.0, 2),
        ("exit", 2.0, "finished", None),
    ]


def test_metrics_that_are_not_finite():
    class Diverging(Flat):
        def curve(self, trial, hparams, seed):
            return SimulatedCurve(lambda step: float("nan"), lambda step: 1.0)

    executor = SimExecutor(Diverging(), 1)
    launch(executor)
    report = events(executor, 2)[1]
    assert report.metric is None
    assert report.report.metrics == {"score": "nan"}
    assert executor.improvements == []


@pytest.mark.parametrize(("kind", "outcome"), [("crash", "failed"), ("lost", "lost")])
def test_incidents_that_end_a_launch(kind, outcome):
    executor = machine(incidents=[Incident(at=2.5, kind=kind, trial=0, reason="it burns")])
    launch(executor)
    *_, exited = events(executor, 4)
    assert told(exited) == ("exit", 2.5, outcome, None)
    assert exited.error == "it burns"


def test_a_hung_trial_dies_only_after_the_grace():
    executor = machine(incidents=[Incident(at=2.5, kind="hang", trial=0)])
    launch(executor)
    events(executor, 3)
    assert executor.poll(50.0) == []
    executor.execute(Kill(0, 1, 5.0))
    assert told(events(executor, 1)[0]) == ("exit", 55.0, "killed", None)


def test_devices_that_do_not_come_back():
    executor = machine(faults=Faults(quarantine=0.999999, readmit_s=10.0))
    launch(executor)
    executor.execute(Kill(0, 1, 0.0))
    events(executor, 1)
    executor.execute(ConfirmRelease(("sim:0",)))
    broken, mended = events(executor, 2)
    assert (type(broken), broken.device, broken.at) == (DeviceQuarantined, "sim:0", 0.0)
    assert (type(mended), mended.device, mended.at) == (DeviceReadmitted, "sim:0", 10.0)


def test_a_broken_device_is_readmitted_only_when_nobody_is_on_it():
    incidents = [
        Incident(at=0.5, kind="quarantine", device="sim:0", reason="XID 79"),
        Incident(at=0.6, kind="readmit", device="sim:0"),
    ]
    executor = machine(incidents=incidents, delays=Delays(exit_s=0.3))
    launch(executor)
    _, broken = events(executor, 2)
    assert broken.reason == "XID 79"
    executor.execute(Kill(0, 1, 0.0))
    _, mended = events(executor, 2)
    assert mended == DeviceReadmitted(at=1.6, device="sim:0")


def test_faults_do_not_depend_on_the_order_of_things():
    faults = Faults(crash=0.1, lost=0.1)
    steps = [faults.crash_step(1, trial) for trial in range(200)]
    assert steps == [faults.crash_step(1, trial) for trial in range(200)]
    assert sum(steps) / len(steps) == pytest.approx(10, rel=0.25)
    assert Faults().crash_step(1, 1) > 10**12
    assert faults.fault_steps(1, 2, 1) != faults.fault_steps(1, 2, 2)


def test_noise_is_the_same_when_a_step_is_trained_twice():
    executor = machine(noise=Noise(step_time=0.2, metric=0.1))
    launch(executor)
    first = events(executor, 2)[1]
    executor.execute(Kill(0, 1, 0.0))
    events(executor, 1)
    launch(executor, incarnation=2)
    again = events(executor, 2)[1]
    assert again.metric == first.metric != 1.0
    assert again.report.step_time_s == first.report.step_time_s != 1.0


# ---------------------------------------------------------------- a daemon that dies


def search(seed=0):
    draw = [{"b0_quantile": n / 40, "b1": 0.5, "b2": 0.5} for n in range(40)].__getitem__
    policy = policies.make("hypersched", {"r": 2, "R": 30, "eta": 2.0})
    rules = Rules(deadline_s=5.0, scaling="linear", watch=False, last_call_s=0.0, max_trials=40)
    return Experiment(rules, policy, draw)


def crash_and_go_on(tmp_path, random):
    """Run a search whose daemon dies again and again, each time after a random number of turns."""
    executor = SimExecutor(
        Synthetic(), 4, delays=Delays(launch_s=0.03, save_s=0.01, exit_s=0.01, release_s=0.02)
    )
    path = tmp_path / "journal.db"
    journal, epoch = Journal.create(path, {}), 1
    experiment = search()
    driver = Driver(experiment, executor, journal, check=True)
    start(driver, executor)
    while not experiment.finished:
        for _ in range(random.randint(1, 60)):
            if experiment.finished:
                break
            driver.turn()
        journal.close()
        experiment, journal, epoch = search(), Journal.open(path), epoch + 1
        replay(experiment, journal.entries())
        driver = Driver(experiment, executor, journal, check=True)
        if not experiment.finished:
            driver.resume(epoch)
    journal.close()
    return experiment


@pytest.mark.parametrize("seed", range(3))
def test_a_daemon_that_dies_again_and_again_still_finds_a_model(tmp_path, seed):
    experiment = crash_and_go_on(tmp_path, Random(seed))
    assert experiment.state.best is not None
    assert experiment.state.failures == 0
    assert max(trial.step for trial in experiment.state.trials.values()) >= 20


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


def test_reconcile_tells_of_every_report_that_was_not_journaled():
    """Several may have been answered before the journal was synced: the daemon answers a "go on" at once."""
    executor = machine(1)
    launch(executor, 0, ("sim:0",))
    events(executor, 4)  # up, and three reports
    found = executor.reconcile([LiveTrial(0, 1, ("sim:0",), last_seq=1)])
    assert [told(event) for event in found] == [("report", 3.0, 2), ("report", 3.0, 3)]
    assert [event.seq for event in found] == [2, 3]
    assert [event.metric for event in found] == [2.0, 3.0]
    assert told(events(executor, 1)[0]) == ("report", 4.0, 4)  # and it just goes on

"""Contract of every executor (``gpusched/executors/base.py``), as tests to inherit.

An implementation gives a fixture ``rig``: an executor with at least four free devices, and how a trial is told,
through its hyperparameters, how many steps to report before it finishes by itself, or at which step to fail. A rig may
be shared by tests: each test takes new trial numbers and leaves nothing running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusched.core.commands import ConfirmRelease, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    Reported,
    TrialExited,
    TrialUp,
)
from gpusched.executors.base import Executor
from tests.rig import PATIENCE_S

Until = Callable[[Event], bool]


@dataclass
class Rig:
    """``hparams(steps)``: of a trial that reports so many steps; with ``fails_at=k``: that fails at step k."""

    executor: Executor
    new_trial: Callable[[], int]
    hparams: Callable[..., Mapping[str, object]]
    seen: list[Event] = field(default_factory=list)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.executor.inventory())

    def launch(
        self, trial: int, incarnation: int = 1, atoms: int = 1, steps: int = 3, **more: object
    ) -> None:
        self.executor.execute(
            Launch(trial, incarnation, self.devices[:atoms], self.hparams(steps, **more))
        )

    def begin(self, *, steps: int = 3, **more: Any) -> int:
        """Launch a new trial; return its number."""
        self.launch(trial := self.new_trial(), steps=steps, **more)
        return trial

    def watch(self, until: Until, *, hold: bool = False) -> list[Event]:
        """Poll until an event is the one waited for; answer reports, but not that one if ``hold``. What happened."""
        got: list[Event] = []
        executor = self.executor
        deadline = executor.now() + PATIENCE_S
        while executor.now() < deadline:
            events = executor.poll(deadline)
            self.seen.extend(events)
            for event in events:
                got.append(event)
                if isinstance(event, Reported) and not (hold and until(event)):
                    executor.acknowledge(event)
            if any(until(event) for event in events):
                return got
        raise AssertionError(f"waited {PATIENCE_S:.0f} s in vain; happened: {got}")

    def run(self, trial: int) -> list[Event]:
        """Until the trial has exited."""
        return self.watch(exit_of(trial))

    def stop(self, trial: int) -> list[Event]:
        self.executor.execute(Kill(trial, 1, 1.0))
        return self.run(trial)


def exit_of(trial: int) -> Until:
    return lambda event: isinstance(event, TrialExited) and event.trial == trial


def report_of(trial: int, step: int) -> Until:
    return lambda event: isinstance(event, Reported) and (event.trial, event.step) == (trial, step)


def steps_of(events: Sequence[Event], trial: int) -> list[int]:
    return [event.step for event in reports_of(events, trial)]


def reports_of(events: Sequence[Event], trial: int) -> list[Reported]:
    return [event for event in events if isinstance(event, Reported) and event.trial == trial]


def saved_steps(events: Sequence[Event], trial: int) -> list[int]:
    return [e.step for e in events if isinstance(e, CheckpointSaved) and e.trial == trial]


def the_exit(events: Sequence[Event], trial: int) -> TrialExited:
    (found,) = [
        event for event in events if isinstance(event, TrialExited) and event.trial == trial
    ]
    return found


class ExecutorContract:
    """Inherit, and give the fixture ``rig``."""

    def test_inventory_is_fixed_and_names_are_unique(self, rig: Rig) -> None:
        names = rig.devices
        assert len(set(names)) == len(names) >= 4
        assert rig.executor.inventory() == rig.executor.inventory()

    def test_a_trial_comes_up_reports_and_finishes(self, rig: Rig) -> None:
        trial = rig.begin(steps=3)
        events = [event for event in rig.run(trial) if getattr(event, "trial", trial) == trial]
        kinds = [type(event) for event in events if not isinstance(event, CheckpointSaved)]
        assert kinds == [TrialUp, Reported, Reported, Reported, TrialExited]
        reports = reports_of(events, trial)
        assert [event.step for event in reports] == [1, 2, 3]
        assert [event.seq for event in reports] == [1, 2, 3]
        assert all(event.metric is not None and event.incarnation == 1 for event in reports)
        ending = the_exit(events, trial)
        assert (ending.outcome, ending.error) == ("finished", None)
        times = [event.at for event in events]
        assert times == sorted(times)
        assert times[-1] <= rig.executor.now()

    def test_a_report_is_waited_with_until_it_is_acknowledged(self, rig: Rig) -> None:
        trial = rig.begin(steps=3)
        first = rig.watch(report_of(trial, 1), hold=True)
        later = list(rig.executor.poll(rig.executor.now() + 0.3))
        assert steps_of(first + later, trial) == [1]
        (report,) = reports_of(first, trial)
        rig.executor.acknowledge(report)
        assert steps_of(rig.run(trial), trial) == [2, 3]

    def test_yield_with_a_checkpoint_and_going_on_from_it(self, rig: Rig) -> None:
        trial = rig.begin(steps=4)
        rig.watch(report_of(trial, 1))
        events = rig.watch(report_of(trial, 2), hold=True)
        rig.executor.execute(Yield(trial, 1, save=True))
        rig.executor.acknowledge(events[-1])
        events = rig.run(trial)
        ending = the_exit(events, trial)
        assert (ending.outcome, ending.saved_step) == ("yielded", 2)
        assert saved_steps(events, trial) == [2]
        rig.launch(trial, incarnation=2, atoms=2, steps=4)
        events = rig.run(trial)
        reports = reports_of(events, trial)
        assert [(r.incarnation, r.seq, r.step) for r in reports] == [(2, 3, 3), (2, 4, 4)]
        assert the_exit(events, trial).outcome == "finished"

    def test_yield_between_reports_is_answered_at_the_next(self, rig: Rig) -> None:
        trial = rig.begin(steps=50)
        rig.watch(report_of(trial, 1))
        rig.executor.execute(Yield(trial, 1, save=False))
        events = rig.run(trial)
        assert len(steps_of(events, trial)) < 49
        ending = the_exit(events, trial)
        assert (ending.outcome, ending.saved_step) == ("yielded", None)

    def test_save_and_go_on(self, rig: Rig) -> None:
        trial = rig.begin(steps=3)
        events = rig.watch(report_of(trial, 1), hold=True)
        rig.executor.execute(Save(trial, 1))
        rig.executor.acknowledge(events[-1])
        events = rig.run(trial)
        assert 1 in saved_steps(events, trial)
        assert steps_of(events, trial) == [2, 3]

    def test_save_then_yield_saves_before_it_leaves(self, rig: Rig) -> None:
        trial = rig.begin(steps=3)
        events = rig.watch(report_of(trial, 1), hold=True)
        rig.executor.execute(Yield(trial, 1, save=False))
        rig.executor.execute(Save(trial, 1))
        rig.executor.acknowledge(events[-1])
        assert the_exit(rig.run(trial), trial).saved_step == 1

    def test_a_trial_that_fails_says_why(self, rig: Rig) -> None:
        trial = rig.begin(steps=5, fails_at=2)
        events = rig.run(trial)
        ending = the_exit(events, trial)
        assert ending.outcome == "failed"
        assert ending.error
        assert steps_of(events, trial) == [1]

    def test_kill_twice_is_kill_once(self, rig: Rig) -> None:
        trial = rig.begin(steps=10_000)
        rig.watch(report_of(trial, 2))
        rig.executor.execute(Kill(trial, 1, 5.0))
        rig.executor.execute(Kill(trial, 1, 5.0))
        assert the_exit(rig.run(trial), trial).outcome == "killed"
        rig.executor.execute(Kill(trial, 1, 5.0))
        assert list(rig.executor.poll(rig.executor.now() + 0.2)) == []

    def test_kill_right_after_launch(self, rig: Rig) -> None:
        trial = rig.begin(steps=10_000)
        assert the_exit(rig.stop(trial), trial).outcome == "killed"

    def test_a_launch_twice_is_a_launch_once(self, rig: Rig) -> None:
        trial = rig.begin(steps=2)
        rig.launch(trial, steps=2)
        events = rig.run(trial)
        assert steps_of(events, trial) == [1, 2]
        assert len([e for e in events if isinstance(e, TrialUp) and e.trial == trial]) == 1

    def test_what_names_an_old_incarnation_or_an_unknown_trial_does_nothing(self, rig: Rig) -> None:
        trial = rig.begin(incarnation=7, steps=2)
        rig.executor.execute(Kill(trial, 6, 0.0))
        rig.executor.execute(Yield(trial, 6, save=False))
        rig.executor.execute(Kill(rig.new_trial(), 1, 0.0))
        rig.executor.execute(Save(rig.new_trial(), 1))
        events = rig.run(trial)
        assert (the_exit(events, trial).outcome, steps_of(events, trial)) == ("finished", [1, 2])

    def test_devices_are_released_after_the_exit(self, rig: Rig) -> None:
        trial = rig.begin(atoms=2, steps=1)
        rig.run(trial)
        devices = rig.devices[:2]
        rig.executor.execute(ConfirmRelease(devices))
        released: set[str] = set()

        def all_of_them(event: Event) -> bool:
            if isinstance(event, DevicesReleased):
                released.update(event.devices)
            return released == set(devices)

        rig.watch(all_of_them)

    def test_two_trials_side_by_side(self, rig: Rig) -> None:
        one, other = rig.begin(steps=4), rig.new_trial()
        rig.executor.execute(Launch(other, 1, rig.devices[1:3], rig.hparams(4)))
        events: list[Event] = []
        while len([e for e in events if isinstance(e, TrialExited)]) < 2:
            events += rig.watch(lambda event: isinstance(event, TrialExited))
        for trial in (one, other):
            assert steps_of(events, trial) == [1, 2, 3, 4]
            assert the_exit(events, trial).outcome == "finished"

    def test_poll_returns_in_time_when_nothing_happens(self, rig: Rig) -> None:
        until, turns = rig.executor.now() + 0.1, 0
        while rig.executor.now() < until:  # a ring, such as a bootstrap's answer, may end one early
            assert list(rig.executor.poll(until)) == []
            turns += 1
        assert turns < 20, "it spins"

"""Resume and replay: commands that the state implies are issued again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpusched.core.commands import Command, ConfirmRelease, KeepBest, Kill, Save, Yield
from gpusched.core.decisions import Start, WakeAt
from gpusched.core.events import Event, QuarantineChanged, TrialExited, UserAsked
from gpusched.core.experiment import Experiment
from gpusched.driver.loop import Driver, live_trials, outstanding, replay
from gpusched.errors import DamagedState
from gpusched.executors.base import LiveTrial
from gpusched.journal.log import Journal
from gpusched.journal.rows import Entry
from tests.core import stages
from tests.events import reported
from tests.helpers import Script, launch
from tests.notebook import Notebook, on_disk

# ---------------------------------------------------------------- what the state implies


def implied(script: Script) -> list[Command]:
    return [c for c in outstanding(script.experiment) if not isinstance(c, KeepBest)]


def test_the_best_model_is_issued_again_with_the_atoms_it_was_trained_on() -> None:
    """Its trial has grown since: a resume on a disk that had been full told the atoms of the latest report."""
    script = stages.waiting().released("d0").drop().decides(WakeAt(30.0)).report(0, 0.4).drop()
    assert script.trial(0).trained_atoms == 2
    assert list(outstanding(script.experiment)) == [KeepBest(0, 1, 0.5, 1)]


def test_a_kill_of_a_trial_that_hangs_asks_for_stacks_again() -> None:
    script = stages.running(watch=True, hang_limit_s=5.0)
    for _ in range(3):  # the first look after a silence of everybody blames nobody
        script.wait(6.0).timer("watch").drop()
    (kill,) = implied(script)
    assert isinstance(kill, Kill)
    assert kill.stacks


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("starting", []),
        ("running", []),
        ("resizing", [Yield(0, 1, save=True)]),
        ("waiting", [ConfirmRelease(("d0",))]),
        ("pausing", [Yield(0, 1, save=True)]),
        ("stopping", [Yield(0, 1, save=False)]),
        ("killed_while_starting", [Yield(0, 1, save=False), Kill(0, 1, 5.0)]),
        ("paused", []),
    ],
)
def test_every_stage_implies_what_must_still_happen(stage: str, expected: list[Command]) -> None:
    assert implied(stages.STAGES[stage]()) == expected


def test_a_yield_keeps_what_was_said_about_saving() -> None:
    script = stages.stopping().report(0, 0.9).expect(Save(0, 1))
    assert implied(script) == [Yield(0, 1, save=True)]


def test_kills_are_issued_again_with_their_grace() -> None:
    script = stages.running()
    script.feed(QuarantineChanged(at=script.now, device="d0", reason="Xid 79")).drop()
    assert implied(script) == [Kill(0, 1, 0.0)]
    script = stages.running().asked("stop").drop().timer("last call").drop()
    assert implied(script) == [Yield(0, 1, save=True), Kill(0, 1, 5.0)]


@pytest.mark.parametrize("stage", list(stages.STAGES))
def test_live_are_those_that_should_have_processes(stage: str) -> None:
    live = {one.trial for one in live_trials(stages.STAGES[stage]().experiment)}
    assert (0 in live) == (stage not in ("waiting", "paused", "completed", "stopped", "failed"))


# ---------------------------------------------------------------- resume


def test_resume_reconciles_first_and_acts_after_the_sync(path: Path, journal: Journal) -> None:
    script = stages.pausing()
    missed = reported(at=9.0, trial=0, incarnation=1, seq=3, step=3, metric=0.9, step_time_s=1.0)

    class Suspicious(Notebook):
        def execute(self, command: Command) -> None:
            assert [kind for kind, _ in on_disk(path)] == ["DaemonResumed", "Reported"]
            super().execute(command)

    executor = Suspicious(found=[missed], clock=9.0)
    Driver(script.experiment, executor, journal).resume(epoch=2)
    assert executor.live == [LiveTrial(0, 1, ("d0",), 2, saved_step=1)]
    yields, best = Yield(0, 1, save=True), KeepBest(0, 1, 0.5, 1)
    assert executor.told == [("go on", 0, 3), yields, best]
    assert script.trial(0).step == 3


def test_a_launch_that_a_resume_fills_in_is_not_taken_for_one_that_never_began() -> None:
    class Forgetful(Notebook):
        """Executor with which no trial that should live has begun."""

        def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
            super().reconcile(live)
            return [
                TrialExited(
                    at=self.clock,
                    trial=one.trial,
                    incarnation=one.incarnation,
                    outcome="lost",
                    unbegun=True,
                )
                for one in live
            ]

    script = Script(devices=2).wants(Start(1)).start().drop()
    script.policy.capacity.append(Start(1))
    executor = Forgetful(clock=9.0)
    Driver(script.experiment, executor, check=True).resume(epoch=2)
    assert [one.trial for one in executor.live] == [0], "asked before anything is begun"
    assert launch(1, 1, "d1") in executor.told
    assert script.trial(1).is_live


# ---------------------------------------------------------------- replay


def entries_of(script: Script) -> list[Entry]:
    """Return what the journal of this script holds."""
    again = Experiment(script.rules, stages.running().policy, lambda n: {"n": n})
    again.policy.capacity.append(Start(1))
    found = []
    for seq, event in enumerate(script.events, 1):
        found.append(Entry(seq, event, again.handle(event)))
    return found


def test_replay_that_causes_other_commands_names_both() -> None:
    entries = entries_of(stages.running())
    entries[0] = Entry(1, entries[0].event, [KeepBest(7, 1, 0.5, 1)])
    with pytest.raises(DamagedState) as raised:
        replay(Script(devices=2).wants(Start(1)).experiment, iter(entries))
    text = str(raised.value)
    assert "event 1 (DevicesJoined at 0.000 s) caused other commands" in text
    assert "then: [KeepBest(trial=7, step=1, metric=0.5, atoms=1)]" in text
    assert "now:  [Launch(" in text
    assert "use that one" in text


def test_replay_of_what_cannot_have_happened_is_a_divergence_and_no_crash() -> None:
    entries = entries_of(stages.running())
    entries.append(Entry(9, UserAsked(at=5.0, verb="stop"), []))

    class Stubborn(Experiment):
        def handle(self, event: Event) -> list[Command]:
            assert not isinstance(event, UserAsked), "a rule of another version"
            return super().handle(event)

    script = Script(devices=2).wants(Start(1))
    stubborn = Stubborn(script.rules, script.policy, lambda n: {"n": n})
    with pytest.raises(DamagedState, match="cannot have happened: a rule of another version"):
        replay(stubborn, iter(entries))

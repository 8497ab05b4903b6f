"""The next ranks of a resize, set up beside those that train: they go on exactly, and nothing of them is ever left."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.core.commands import Kill, Launch, Save, Yield
from gpusched.core.events import CheckpointSaved, Event, Reported, TrialExited, TrialUp
from gpusched.executors.base import LiveTrial
from gpusched.executors.local.prestart import Stage
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import is_alive
from tests.executors.conftest import Lab, of_trial
from tests.executors.contract import Rig, exit_of, report_of, the_exit
from tests.rig import wait_until

STEPS = 100_000


class Resize:
    """One trial that is about to be resized, and what the driver would do about it."""

    def __init__(self, lab: Lab, atoms: int = 2, **scenario: object) -> None:
        self.lab = lab
        self.rig: Rig = lab.rig
        self.trial = self.rig.new_trial()
        self.hparams = {"scenario": "carry", "steps": STEPS, **scenario}
        devices = self.rig.devices
        lab.executor.execute(Launch(self.trial, 1, devices[:1], self.hparams))
        self.events: list[Event] = []
        self.see(report_of(self.trial, 2))
        self.next = Launch(self.trial, 2, devices[:atoms], self.hparams)

    def see(self, until: Callable[[Event], bool]) -> Event:
        self.events += self.rig.watch(until)
        return next(event for event in reversed(self.events) if until(event))

    def decide(self, interval_s: float = 0.01) -> None:
        self.lab.executor.expect(self.trial, self.next, interval_s)
        self.lab.executor.execute(Yield(self.trial, 1, save=True))

    def launch_next(self) -> None:
        self.lab.executor.execute(self.next)

    @property
    def prepared(self) -> list[int]:
        return of_trial(self.lab.folder, self.trial, 2)

    @property
    def reports(self) -> list[Reported]:
        return [e for e in self.events if isinstance(e, Reported) and e.trial == self.trial]

    def ready(self) -> None:
        """Watch until its next ranks wait."""
        self.see(
            lambda event: (
                isinstance(event, Reported) and self.stage in (Stage.READY, Stage.TRAINING)
            )
        )

    @property
    def stage(self) -> Stage | None:
        """How far the prestart is; None: there is none."""
        prestarted = self.lab.roster.prestarted.get(self.trial)
        prestart = prestarted.prestart if prestarted is not None else None
        return prestart.stage if prestart is not None else None

    def goes_on_without_a_gap(self) -> None:
        """No step is lost or done twice, whatever the incarnation."""
        found = [(report.step, report.metric) for report in self.reports]
        assert found == [(step, float(step)) for step in range(1, len(found) + 1)]
        assert [report.seq for report in self.reports] == list(range(1, len(found) + 1))

    def end(self) -> None:
        self.lab.executor.expect(self.trial, None, 0.0)
        live = self.lab.roster.current.get(self.trial)
        if live is not None:
            self.lab.executor.execute(Kill(self.trial, live.number, 0.0))
            self.rig.watch(exit_of(self.trial))


def nothing_is_left(resize: Resize) -> bool:
    return not resize.prepared and not resize.lab.paths.trial(resize.trial).waits.exists()


def poll_until(lab: Lab, true: Callable[[], bool]) -> list[Event]:
    """Serve the executor until this holds."""
    found: list[Event] = []

    def holds() -> bool:
        for event in lab.executor.poll(lab.executor.now() + 0.02):
            found.append(event)
            if isinstance(event, Reported):
                lab.executor.acknowledge(event)
        return true()

    wait_until(holds)
    return found


def test_what_a_salvage_put_aside_keeps_no_daemon_from_resuming(lab: Lab) -> None:
    aside = lab.paths.trials / "0007.salvaged-1"
    aside.mkdir(parents=True)
    (aside / "waits").write_text('{"incarnation": 2, "devices": ["cpu:0"]}')
    lab.rebuild()
    assert not lab.executor.reconcile([])
    assert (aside / "waits").exists(), "a folder that was put aside is left as it was"


def is_uncounted(report: Reported, incarnation: int) -> bool:
    return report.incarnation == incarnation


@pytest.mark.parametrize("interval_s", [0.01, 1e9], ids=["short steps", "long steps"])
def test_it_goes_on_exactly_where_the_old_ranks_leave(lab: Lab, interval_s: float) -> None:
    resize = Resize(lab)
    resize.decide(interval_s)
    ending = resize.see(exit_of(resize.trial))
    assert isinstance(ending, TrialExited)
    assert (ending.outcome, ending.saved_step) == ("yielded", resize.reports[-1].step)
    stayed = [report for report in resize.reports if report.stays]
    assert bool(stayed) == (interval_s < 1.0)
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 5))
    resize.goes_on_without_a_gap()
    assert resize.reports[-1].incarnation == 2
    assert sum(isinstance(e, TrialUp) and e.incarnation == 2 for e in resize.events) == 1
    assert not lab.paths.trial(resize.trial).waits.exists()
    assert len(of_trial(lab.folder, resize.trial, 2)) == 3  # shim and two ranks
    resize.end()


def test_the_old_ranks_save_when_asked_while_the_next_ones_are_set_up(lab: Lab) -> None:
    resize = Resize(lab)
    resize.decide()
    lab.executor.execute(Save(resize.trial, 1))
    resize.ready()
    assert all(report.can_save for report in resize.reports if report.stays)
    ending = resize.see(exit_of(resize.trial))
    saved = [event.step for event in resize.events if isinstance(event, CheckpointSaved)]
    assert saved, "a save that waits until the trial leaves is lost where its script ends before"
    assert saved[0] < ending.saved_step
    resize.goes_on_without_a_gap()
    resize.end()


def test_it_trains_before_the_old_ranks_have_gone_and_is_not_heard_until_then(lab: Lab) -> None:
    resize = Resize(lab)
    resize.decide()
    resize.ready()
    resize.see(exit_of(resize.trial))
    assert {report.incarnation for report in resize.reports} == {1}
    lines = lab.paths.trial(resize.trial).reports.read_text().splitlines()
    assert len(lines) == len(resize.reports)
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 3))
    resize.goes_on_without_a_gap()
    resize.end()


def test_what_is_not_expected_any_more_is_ended_and_the_trial_leaves(lab: Lab) -> None:
    resize = Resize(lab)
    resize.decide()
    resize.ready()
    lab.executor.expect(resize.trial, None, 0.0)
    resize.see(exit_of(resize.trial))
    poll_until(lab, lambda: nothing_is_left(resize))
    assert lab.logs(resize.trial).with_name("unused-2").is_dir()
    assert not lab.logs(resize.trial, 2).exists()


def test_a_part_that_another_node_has_begun_keeps_its_claim(lab: Lab) -> None:
    """The launch is one over several nodes after all: a daemon that took over found no claim of that part."""
    resize = Resize(lab)
    resize.decide()
    resize.ready()
    theirs = lab.paths.trial(resize.trial, 1).shim(2)
    theirs.write_text("theirs")
    lab.executor.expect(resize.trial, None, 0.0)
    resize.see(exit_of(resize.trial))
    poll_until(lab, lambda: nothing_is_left(resize))
    assert theirs.read_text() == "theirs"
    own = lab.paths.trial(resize.trial)
    assert not own.shim(2).exists()
    assert not own.exit(2).exists()


def test_nobody_gets_its_devices_before_it_is_gone(lab: Lab) -> None:
    resize = Resize(lab)
    resize.decide()
    resize.ready()
    waiting = read_claim(lab.paths.trial(resize.trial).shim(2))
    assert len(waiting.ranks) == 2
    lab.executor.expect(resize.trial, None, 0.0)
    other = resize.rig.new_trial()
    lab.executor.execute(
        Launch(other, 1, resize.next.devices[1:], {"scenario": "train", "steps": 1})
    )
    withdrawn = resize.rig.new_trial()
    lab.executor.execute(Launch(withdrawn, 1, resize.next.devices[1:], resize.hparams))
    lab.executor.execute(Kill(withdrawn, 1, 5.0))
    began: list[bool] = []

    def up(event: Event) -> bool:
        if isinstance(event, TrialUp) and event.trial == other:
            began.append(any(is_alive(rank) for rank in waiting.ranks))
        return isinstance(event, TrialExited) and event.trial == other

    resize.see(up)
    assert began == [False]
    ends = [e for e in resize.events if isinstance(e, TrialExited) and e.trial == withdrawn]
    assert [e.outcome for e in ends] == ["killed"]
    resize.end()


def test_what_cannot_be_set_up_beside_the_old_ranks_is_launched_when_they_have_left(
    lab: Lab,
) -> None:
    resize = Resize(lab, fails_set_up=True)
    resize.decide()
    resize.see(exit_of(resize.trial))
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 2))
    resize.goes_on_without_a_gap()
    said = [text for text in lab.said if f"trial {resize.trial}: its next ranks" in text]
    assert len(said) == 1
    assert "two at once are too many" in said[0]
    lab.executor.prestarts.failures = 0
    resize.end()


def test_a_trial_that_cannot_commit_what_it_handed_over_trains_on_alone(lab: Lab) -> None:
    resize = Resize(lab)
    checkpoints = lab.paths.trial(resize.trial).checkpoints
    checkpoints.write_text("in the way")
    resize.decide()
    resize.ready()
    resize.events += poll_until(lab, lambda: nothing_is_left(resize))
    at = len(resize.reports)
    resize.see(report_of(resize.trial, resize.reports[-1].step + 2))
    checkpoints.unlink()
    resize.see(exit_of(resize.trial))
    assert len(resize.reports) > at
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 2))
    resize.goes_on_without_a_gap()
    resize.end()


def test_a_launch_that_comes_early_takes_what_is_not_ready_yet(lab: Lab) -> None:
    resize = Resize(lab)
    resize.decide(1e9)
    lab.executor.execute(Kill(resize.trial, 1, 0.0))
    resize.see(exit_of(resize.trial))
    resize.launch_next()
    resize.see(lambda event: isinstance(event, Reported) and is_uncounted(event, 2))
    assert resize.reports[-1].step == 1  # nothing had been saved
    resize.end()


def test_a_change_of_devices_ends_it_and_the_launch_is_made_anew(lab: Lab) -> None:
    resize = Resize(lab)
    resize.decide()
    resize.ready()
    resize.next = Launch(resize.trial, 2, (resize.rig.devices[3],), resize.hparams)
    lab.executor.expect(resize.trial, resize.next, 0.01)
    resize.see(exit_of(resize.trial))
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 2))
    resize.goes_on_without_a_gap()
    resize.end()


# ---------------------------------------------------------------- deaths


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    lab = Lab(Path(tempfile.mkdtemp(prefix="gpusched-lab-")))
    yield lab
    lab.clean()


@pytest.fixture
def stopping_lab() -> Iterator[Lab]:
    """Rank 0 stops itself when it has handed its state over and has not committed it."""
    env = {"GPUSCHED_FAILPOINT": "handover.told:1:stop"}
    lab = Lab(Path(tempfile.mkdtemp(prefix="gpusched-lab-")), env=env)
    yield lab
    lab.clean()


class HandedOver(Resize):
    """Stands between handing over and committing: the new ranks train, the old checkpoint is all there is on disk."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        lab.executor.execute(Save(self.trial, 1))
        saved = self.see(lambda event: isinstance(event, CheckpointSaved))
        assert isinstance(saved, CheckpointSaved)
        self.saved_step = saved.step
        claim = read_claim(lab.paths.trial(self.trial).shim(1))
        self.shim, self.rank = claim.shim.pid, claim.ranks[0].pid
        self.decide()
        self.events += poll_until(lab, self._trains)

    def _trains(self) -> bool:
        return self.stage is Stage.TRAINING

    def went_back_to_what_was_committed(self) -> None:
        """The launch that follows begins at the last committed checkpoint, and nothing else was ever told."""
        self.launch_next()
        before = len(self.reports)
        self.see(lambda event: isinstance(event, Reported) and event.incarnation >= 2)
        assert {report.incarnation for report in self.reports[:before]} == {1}
        first = self.reports[-1]
        assert (first.step, first.metric) == (self.saved_step + 1, self.saved_step + 1.0)
        self.end()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "shim"])
def test_killed_before_it_has_committed_what_it_handed_over(stopping_lab: Lab, victim: str) -> None:
    resize = HandedOver(stopping_lab)
    os.kill(getattr(resize, victim), signal.SIGKILL)
    resize.see(exit_of(resize.trial))
    assert the_exit(resize.events, resize.trial).saved_step is None
    poll_until(stopping_lab, lambda: not resize.prepared)
    resize.went_back_to_what_was_committed()


@pytest.mark.slow
def test_the_daemon_dies_before_the_old_ranks_have_committed(stopping_lab: Lab) -> None:
    resize = HandedOver(stopping_lab)
    lab = resize.lab
    live = LiveTrial(
        resize.trial,
        1,
        resize.rig.devices[:1],
        resize.reports[-1].seq,
        saved_step=resize.saved_step,
    )
    lab.rebuild()
    resize.rig = lab.rig
    resize.events += lab.executor.reconcile([live])
    os.kill(resize.rank, signal.SIGCONT)
    ending = resize.see(exit_of(resize.trial))
    assert isinstance(ending, TrialExited)
    # It may have been answered before the daemon went, so it leaves; then it has committed what it had handed over.
    assert ending.outcome == "yielded"
    assert ending.saved_step is not None
    resize.saved_step = ending.saved_step
    resize.went_back_to_what_was_committed()


@pytest.mark.slow
def test_a_daemon_that_comes_back_ends_what_waits_and_launches_it_anew(own_lab: Lab) -> None:
    resize = Resize(own_lab)
    resize.decide()
    resize.ready()
    left = resize.prepared
    assert len(left) == 3
    live = LiveTrial(resize.trial, 1, resize.rig.devices[:1], resize.reports[-1].seq)
    own_lab.rebuild()
    resize.rig = own_lab.rig
    resize.events += own_lab.executor.reconcile([live])
    poll_until(own_lab, lambda: nothing_is_left(resize))
    own_lab.executor.execute(Yield(resize.trial, 1, save=True))
    resize.see(exit_of(resize.trial))
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 2))
    resize.goes_on_without_a_gap()
    resize.end()


@pytest.mark.slow
def test_launched_in_the_journal_and_not_told_so_it_has_not_begun(own_lab: Lab) -> None:
    """The daemon died between the sync and the word to the shim."""
    resize = Resize(own_lab)
    resize.decide()
    resize.see(exit_of(resize.trial))
    live = LiveTrial(resize.trial, 2, resize.next.devices, resize.reports[-1].seq)
    own_lab.rebuild()
    resize.rig = own_lab.rig
    resize.events += own_lab.executor.reconcile([live])
    endings = [e for e in resize.events if isinstance(e, TrialExited) and e.incarnation == 2]
    if not endings:
        resize.see(lambda event: isinstance(event, TrialExited) and event.incarnation == 2)
        endings = [e for e in resize.events if isinstance(e, TrialExited) and e.incarnation == 2]
    assert [(e.outcome, e.unbegun) for e in endings] == [("lost", True)]
    assert nothing_is_left(resize)


@pytest.mark.slow
def test_the_server_dies_while_ranks_wait(own_lab: Lab) -> None:
    resize = Resize(own_lab)
    resize.decide()
    resize.ready()
    server = own_lab.executor.server.pid
    assert server is not None
    os.kill(server, signal.SIGKILL)
    resize.see(exit_of(resize.trial))
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 2))
    resize.goes_on_without_a_gap()
    resize.end()
    poll_until(own_lab, lambda: not resize.prepared)

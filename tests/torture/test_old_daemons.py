"""A daemon sleeps, another takes over, the first wakes up and must touch nothing. And trials nobody comes back to."""

from __future__ import annotations

import json
import signal

import pytest

from gpusched.core.events import DaemonResumed
from gpusched.errors import Fenced, GpuschedError
from gpusched.folder.lock import Epoch, read_epoch
from gpusched.journal.log import Journal
from tests.journal_samples import META, sample
from tests.rig import PATIENCE_S, wait_until
from tests.torture.bed import MakeBed


def test_epochs_only_grow_and_an_older_one_is_told(tmp_path) -> None:
    first = Epoch(tmp_path, 0)
    first.check()
    second = Epoch(tmp_path, 0)
    assert (first.number, second.number, read_epoch(tmp_path)) == (1, 2, 2)
    assert Epoch(tmp_path, 7).number == 8, "the journal knows of more daemons than the file"
    with pytest.raises(Fenced, match="daemon 8 has taken over; this one, daemon 1, leaves"):
        first.check()


def test_an_epoch_that_cannot_be_written_down_is_said(tmp_path) -> None:
    with pytest.raises(
        GpuschedError, match=r"epoch: cannot be written .*, so no daemon can take over"
    ):
        Epoch(tmp_path / "nowhere", 0)


def test_the_journal_refuses_an_older_daemon_and_stays_as_it_is(tmp_path) -> None:
    path = tmp_path / "journal.db"
    old = Journal.create(path, {**META, "epoch": 1})
    for event, commands in sample(2):
        old.append(event, commands)
    old.commit()
    new = Journal.open(path)
    new.set_epoch(2)
    known = list(new.entries())
    old.append(*sample(1)[0])
    with pytest.raises(Fenced):
        old.commit()
    new.append(DaemonResumed(at=99.0, epoch=2), [])
    new.commit()
    again = Journal.open(path)
    assert [entry.event for entry in again.entries()][:-1] == [entry.event for entry in known]
    for journal in (again, new):
        journal.close()
    old.abandon()


def test_an_old_daemon_that_wakes_up_leaves_without_touching_anything(make_bed: MakeBed) -> None:
    bed = make_bed(devices="cpu:2", policy={"name": "fifo", "R": 100_000}, max_trials=2)
    bed.begin(reports=6)
    old = bed.daemon
    old.send_signal(signal.SIGSTOP)
    bed.paths.lock.unlink()  # what people do with a lock that is in the way
    bed.resume()
    bed.wait_for_reports(6)  # also ranks that were waiting for the old one's answer
    old.send_signal(signal.SIGCONT)
    assert old.wait(PATIENCE_S) == 1
    assert "daemon 2 has taken over; this one, daemon 1, leaves" in bed.log()
    assert "Traceback" not in bed.log()
    assert bed.view()["daemon_pid"] == bed.daemon.pid, "its socket is still there"
    bed.ask("pause", trial=0)
    wait_until(
        lambda: bed.view()["trials"][0]["state"] == "paused",
        "shim and rank to listen to the new daemon",
    )
    again = bed.finish()
    assert {trial.incarnation for trial in again.state.trials.values()} == {1}


@pytest.mark.slow
def test_without_a_daemon_trials_save_and_leave_and_go_on_later(make_bed: MakeBed) -> None:
    bed = make_bed(
        {"GPUSCHED_TETHER_S": "1"},
        devices="cpu:2",
        policy={"name": "fifo", "R": 100_000},
        max_trials=2,
    )
    bed.begin(reports=6)
    bed.kill()
    wait_until(lambda: not bed.processes(), "everybody to leave")
    for trial in (0, 1):
        record = json.loads(bed.paths.trial(trial).exit(1).read_text())
        assert record["outcome"] == "yielded"
        assert record["saved_step"] == bed.lines(trial)[-1]["k"]
    bed.resume()
    bed.wait_for_reports(4)
    again = bed.finish()
    assert {trial.incarnation for trial in again.state.trials.values()} == {2}
    for trial in (0, 1):
        assert [line["k"] for line in bed.lines(trial)] == list(range(1, len(bed.lines(trial)) + 1))

"""The timeline: what happened to each trial and device, read beside a writer; damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.errors import DamagedState
from gpusched.journal.log import Journal
from gpusched.journal.timeline import DeviceSpan, read
from tests.events import reported
from tests.journal_samples import story


def test_curves_and_who_had_which_device(tmp_path: Path) -> None:
    told = read(story(tmp_path / "journal.db"))
    assert (told.devices, told.until) == (("d0", "d1"), 7.0)
    assert told.trials[0].curve == [(1.0, 1, 0.5), (3.0, 2, 0.75), (7.0, 3, 0.6)]
    assert told.trials[1].curve == [(3.5, 1, None)]
    assert len(told.trials[0].incarnations) == 2
    assert (told.trials[0].best(1.0), told.trials[0].best(-1.0)) == (0.75, 0.5)
    assert told.trials[1].best(1.0) is None
    assert sorted(told.spans, key=lambda span: (span.device, span.begin)) == [
        DeviceSpan("d0", "held", 0.0, 4.0, 0),
        DeviceSpan("d0", "draining", 4.0, 4.5, 0),
        DeviceSpan("d0", "held", 4.5, 7.0, 0),
        DeviceSpan("d1", "quarantined", 0.0, 2.0, None, "a stranger's"),
        DeviceSpan("d1", "held", 2.0, 5.0, 1),
        DeviceSpan("d1", "quarantined", 5.0, 6.5, None, "Xid 79"),
        DeviceSpan("d1", "quarantined", 6.5, 7.0, None, "it is gone"),
    ]


def test_each_launch_with_its_reports_and_waits(tmp_path: Path) -> None:
    told = read(story(tmp_path / "journal.db"))
    first, second = told.trials[0].incarnations
    assert (first.launched_at, first.exited_at, first.outcome) == (0.0, 4.0, "yielded")
    assert [step.report.seq for step in first.steps] == [1, 2]
    assert first.saved_since_report_s == 0.5
    assert (second.number, second.outcome) == (2, None)
    assert told.trials[0].outcome is None, "the launch before may have failed on more atoms"
    assert (told.saves_s, told.releases_s) == ([0.25, 0.5], [0.5])


def test_it_is_read_beside_a_writer(tmp_path: Path) -> None:
    path = story(tmp_path / "odd #1?.db")
    writer = Journal.open(path)
    count = len(list(writer.entries()))
    later = reported(at=9.0, trial=0, incarnation=2, seq=4, step=4, metric=0.9)
    writer.append(later, [])
    writer.connection.execute("BEGIN IMMEDIATE")
    assert read(path).until == 7.0, "what is not committed is not there, and no lock is wanted"
    writer.connection.execute("ROLLBACK")
    writer.commit()
    assert read(path).until == 9.0
    writer.append(reported(at=10.0, trial=0, incarnation=2, seq=5, step=5, metric=0.9), [])
    writer.commit()
    writer.close()
    assert count == 14


def test_what_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("no database, and long enough to be looked at" * 100)
    with pytest.raises(DamagedState, match="the journal is damaged"):
        read(tmp_path / "journal.db")
    with pytest.raises(DamagedState):
        read(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()

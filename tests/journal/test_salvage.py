"""Salvage: the search goes on behind the last good event; what was damaged is kept."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gpusched.errors import DamagedState
from gpusched.journal.log import Journal
from gpusched.journal.rows import Entry
from tests.journal_samples import META, read, sample, write


def _damage(path: Path, change: str) -> Journal:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(change)
    other.close()
    journal = Journal.open(path)
    with pytest.raises(DamagedState):
        list(journal.entries())
    return journal


def test_salvage_goes_on_behind_the_last_good_event(path: Path) -> None:
    entries = write(path, 20)
    journal = _damage(path, "UPDATE events SET body = '{}' WHERE seq = 13")
    assert journal.drop_after_last_good() == 8
    journal.append(*sample(2)[1])
    journal.close()
    found = read(path)
    assert found[:12] == entries[:12]
    assert [(e.seq, e.event) for e in found[12:]] == [(13, sample(2)[1][0])]
    journal = Journal.open(path)
    assert journal.meta == META
    journal.close()


def test_salvage_keeps_the_damaged_journal(path: Path) -> None:
    write(path, 20)
    for number in (13, 9):
        journal = _damage(path, f"UPDATE events SET body = '{{}}' WHERE seq = {number}")
        journal.drop_after_last_good()
        journal.close()
    names = {file.name for file in path.parent.iterdir()}
    assert {"journal.db", "journal.db.damaged", "journal.db.damaged-2"} <= names
    kept = sqlite3.connect(path.with_name("journal.db.damaged"))
    assert kept.execute("SELECT max(seq) FROM events").fetchone() == (20,)
    kept.close()
    assert len(read(path)) == 8


def test_salvage_of_a_missing_end_says_what_is_lost(path: Path) -> None:
    entries = write(path, 20)
    journal = _damage(path, "DELETE FROM events WHERE seq > 15")
    assert journal.drop_after_last_good() == 5
    journal.close()
    assert read(path) == entries[:15]


def test_salvage_of_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    entries = write(path, 400)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xa5" * 4096  # one page of noise
    path.write_bytes(data)
    journal = Journal.open(path)
    good: list[Entry] = []
    with pytest.raises(DamagedState):
        good.extend(journal.entries())
    assert good == entries[: len(good)]
    assert journal.drop_after_last_good() >= 0
    journal.append(*sample(2)[1])
    journal.close()
    assert read(path)[:-1] == good
    assert len(good) > 50


def test_a_salvage_that_was_cut_short_is_ended_by_the_next_open(path: Path) -> None:
    entries = write(path, 10)
    complete = path.with_name("journal.db.salvaged")
    path.rename(complete)
    path.with_name("journal.db.damaged").write_bytes(b"the damaged one, moved already")
    assert read(path) == entries
    assert not complete.exists()

    path.rename(complete)
    path.write_bytes(b"the damaged one, not moved yet")
    path.with_name("journal.db-wal").write_bytes(b"and its log")
    assert read(path) == entries
    assert path.with_name("journal.db.damaged-2").read_bytes().endswith(b"not moved yet")
    assert path.with_name("journal.db.damaged-2-wal").read_bytes() == b"and its log"


def test_a_salvage_that_did_not_get_far_is_begun_again(path: Path) -> None:
    write(path, 10)
    path.with_name("journal.db.salvaging").write_bytes(b"half of it")
    journal = _damage(path, "UPDATE events SET body = '{}' WHERE seq = 5")
    journal.drop_after_last_good()
    journal.close()
    assert len(read(path)) == 4

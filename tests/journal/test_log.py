"""The journal: what is committed comes back equal, what is none of ours is refused, damage is named."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest

from gpusched.core.events import TrialUp
from gpusched.errors import DamagedState, GpuschedError, InputError
from gpusched.journal import log, rows
from gpusched.journal.log import Journal
from tests.journal_samples import META, read, sample, write
from tests.rig import as_nobody


def alter(path: Path, statements: str) -> None:
    """Change a journal, or another database, behind the back of who wrote it."""
    other = sqlite3.connect(path)
    other.executescript(statements)
    other.close()


# ---------------------------------------------------------------- the good way


def test_it_goes_on_where_it_ended_again_and_again(path: Path) -> None:
    events = sample(30)
    Journal.create(path, META).close()
    for start in range(0, 30, 3):
        journal = Journal.open(path)
        assert [(e.event, e.commands) for e in journal.entries()] == events[:start]
        for event, commands in events[start : start + 3]:
            journal.append(event, commands)
        journal.close()
    assert [(e.event, e.commands) for e in read(path)] == events


def test_appending_before_reading_to_the_end_is_an_error(path: Path) -> None:
    write(path, 5)
    journal = Journal.open(path)
    with pytest.raises(AssertionError, match="read to its end"):
        journal.append(*sample(1)[0])
    next(journal.entries())
    with pytest.raises(AssertionError, match="read to its end"):
        journal.append(*sample(1)[0])
    journal.close()


def test_what_is_appended_is_not_there_before_the_commit(path: Path) -> None:
    journal = Journal.create(path, META)
    journal.append(*sample(1)[0])
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (0,)
    journal.commit()
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (1,)
    other.close()
    journal.commit()
    journal.close()


def test_whole_numbers_as_time_come_back(path: Path) -> None:
    journal = Journal.create(path, META)
    journal.append(TrialUp(at=3, trial=0, incarnation=1), [])
    journal.close()
    assert read(path)[0].event == TrialUp(at=3.0, trial=0, incarnation=1)


def test_a_new_daemons_number_leaves_the_rest_of_meta(path: Path) -> None:
    journal = Journal.create(path, META)
    journal.set_epoch(7)
    journal.close()
    journal = Journal.open(path)
    assert journal.meta == {**META, "epoch": 7}
    journal.close()


def test_a_new_ones_name_survives_a_power_loss(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(log, "sync", synced.append)
    Journal.create(path, META).close()
    assert synced == [path.parent]


def test_it_is_for_its_owner_only(path: Path) -> None:
    journal = Journal.create(path, META)
    journal.append(*sample(1)[0])
    journal.commit()
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    journal.close()
    assert set(modes) == {"journal.db", "journal.db-wal", "journal.db-shm", "journal.db-mark"}
    assert set(modes.values()) == {0o600}


# ---------------------------------------------------------------- what is no journal of ours


def test_where_none_is(path: Path) -> None:
    with pytest.raises(DamagedState, match="no journal is here"):
        Journal.open(path)
    assert not path.exists(), "opening makes none"
    path.mkdir()
    with pytest.raises(DamagedState, match="no journal is here"):
        Journal.open(path)
    with pytest.raises(InputError, match="cannot be made"):
        Journal.create(path, META)


def test_an_existing_one_is_not_written_over(path: Path) -> None:
    entries = write(path, 5)
    with pytest.raises(InputError, match="cannot be made: File exists"):
        Journal.create(path, META)
    assert read(path) == entries


def test_another_database_in_its_place(path: Path) -> None:
    alter(path, "PRAGMA application_id=7; CREATE TABLE t (x)")
    with pytest.raises(DamagedState, match=r"not a journal of gpusched \(application id 0x7\)"):
        Journal.open(path)


@pytest.mark.parametrize("version", [0, 8, 99])
def test_another_format_is_refused_by_its_number(path: Path, version: int) -> None:
    write(path, 5)
    alter(path, f"PRAGMA user_version={version}")
    message = f"has format {version}, this gpusched reads format {rows.FORMAT}; use the gpusched"
    with pytest.raises(DamagedState, match=message) as refused:
        Journal.open(path)
    assert "try_first" not in str(refused.value)


def test_one_that_somebody_else_has_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, 5)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(rows, "_LOCK_TIMEOUT_S", 0.05)
    with pytest.raises(InputError, match="another process has the journal open"):
        Journal.open(path)
    other.close()


def test_a_folder_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as made:  # others can reach it, whoever runs the tests
        path = Path(made, "journal.db")
        write(path, 5)
        path.parent.chmod(0o555)
        path.chmod(0o444)
        opened = as_nobody(lambda: str(Journal.open(path)))
        shown = as_nobody(lambda: str(len(list(rows.read(path)))))
        created = as_nobody(lambda: str(Journal.create(path.with_name("other.db"), {})))
        path.parent.chmod(0o755)
    assert opened.startswith("InputError: ")
    assert "permissions" in opened
    assert shown == "5", "a reader needs no room beside it, which a full disk has not"
    assert "Permission denied" in created


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (sqlite3.SQLITE_IOERR_READ, "the disk answers with an error"),
        (sqlite3.SQLITE_FULL, "the disk is full; make room"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "the disk is full; make room"),
    ],
)
def test_what_the_disk_says_is_no_damage(path: Path, code: int, told: str) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    with pytest.raises(GpuschedError, match=told), rows.explained(path):
        raise error


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET at = at + 1e-9 WHERE seq = 7",
        "UPDATE events SET kind = 'TrialUp' WHERE seq = 7",
        "UPDATE events SET body = replace(body, '0', '1') WHERE seq = 7",
        "UPDATE events SET commands = '[]' WHERE seq = 7",
        "UPDATE events SET crc = crc + 1 WHERE seq = 7",
        "UPDATE events SET body = x'00' WHERE seq = 7",
        "DELETE FROM events WHERE seq = 7",
        "UPDATE events SET seq = -1 WHERE seq = 7",
        "UPDATE events SET seq = 99 WHERE seq = 12",
        "UPDATE events SET seq = -seq WHERE seq IN (7, 8); UPDATE events SET seq = 15 + seq WHERE seq < 0",
    ],
)
def test_a_changed_row_is_named(path: Path, change: str) -> None:
    write(path, 12)
    alter(path, change)
    with pytest.raises(DamagedState, match=r"event (1|7|12) is damaged or missing.* 'try_first'"):
        read(path)


@pytest.mark.parametrize("last", [9, 11])
def test_a_missing_end_is_named(path: Path, last: int) -> None:
    write(path, 12)
    alter(path, f"DELETE FROM events WHERE seq > {last}")
    with pytest.raises(DamagedState, match=f"events {last + 1} to 12 are missing"):
        read(path)


@pytest.mark.parametrize("body", ['{"trial":1,"surprise":2}', "[1]"])
def test_a_whole_event_that_this_version_cannot_read_is_a_newer_ones(
    path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """The checksum is right, so nothing is damaged."""
    monkeypatch.setattr(log, "event_body", lambda event: body)
    write(path, 3)
    with pytest.raises(DamagedState, match=r"event 1 .* use the gpusched") as refused:
        read(path)
    assert "try_first" not in str(refused.value)


@pytest.mark.parametrize("change", ["DELETE FROM meta", "UPDATE meta SET value = '{}'"])
def test_damaged_meta_is_found(path: Path, change: str) -> None:
    write(path, 3)
    alter(path, change)
    journal = Journal.open(path)
    with pytest.raises(DamagedState, match="its description of the search"):
        journal.meta  # noqa: B018
    journal.close()

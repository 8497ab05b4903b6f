"""Room on the disk: the reserve, the low mark, and what the search does below it."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from gpusched.core.commands import Launch
from gpusched.core.decisions import Pause, Start
from gpusched.core.events import CheckpointSaved, StorageChanged
from gpusched.daemon.storage import LOOK_EVERY_S, Storage
from gpusched.errors import InputError
from gpusched.folder import files
from gpusched.folder.files import MIB, SLICES, Reserve, Room
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import DiskFull, Journal
from tests.core import stages
from tests.helpers import Script
from tests.journal_samples import META, read, sample
from tests.rig import refusing

# ---------------------------------------------------------------- the reserve


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_the_reserve_holds_blocks_and_gives_them_back_slice_by_slice(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    kept = Reserve(path)
    assert path.stat().st_mode & 0o777 == 0o600
    for left in range(SLICES, 0, -1):
        assert blocks(path) >= left * MIB
        assert kept.give()
    assert blocks(path) == 0
    assert not kept.give()
    kept.fill()
    assert kept.slices == SLICES


def test_a_reserve_that_cannot_be_had_does_no_harm(tmp_path: Path) -> None:
    assert not Reserve(tmp_path / "nowhere" / "reserve").give()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert not Reserve(link).give()
    assert not (tmp_path / "elsewhere").exists()


# ---------------------------------------------------------------- the marks


def room(free: int, size: int = 100 << 30) -> Room:
    disk = SimpleNamespace(f_blocks=size, f_bavail=free, f_frsize=1)
    with mock.patch.object(files.os, "statvfs", return_value=disk):
        return Room.of(Path())


def on_disk_with(free: Callable[[], int], folder: Path) -> Storage:
    """The look at a disk with so much room, in this thread."""
    made = Storage(ExperimentPaths(folder))
    made._room, made._beside = lambda _: room(free()), lambda work: work()
    return made


def test_the_mark_is_a_share_of_a_small_disk() -> None:
    """2% of it; 512 MiB of a large one."""
    assert not room(25 * MIB, size=1024 * MIB).is_low
    assert room(20 * MIB, size=1024 * MIB).is_low
    assert room(511 * MIB).is_low
    assert not room(513 * MIB).is_low
    assert not room(513 * MIB).is_clear


def test_a_look_tells_each_change_once_and_what_a_daemon_before_had_not_seen(
    tmp_path: Path,
) -> None:
    """A search resumed after a full disk began nothing any more: what it remembers is compared at every look."""
    script, free = stages.running(), 10 << 30
    state = script.state

    storage = on_disk_with(lambda: free, tmp_path)
    storage.require_room()
    assert storage.look(0.0, state) is None
    free = 100 * MIB
    assert storage.look(LOOK_EVERY_S / 2, state) is None, "not yet"
    assert storage.look(LOOK_EVERY_S, state) is None, "that is what the look before has found"
    low = storage.look(2 * LOOK_EVERY_S, state)
    assert low.low
    script.feed(low).drop()
    assert "100 MiB free on the disk, fewer than 512: no trial is begun" in low.what
    assert storage.warning == low.what
    with pytest.raises(InputError, match="100 MiB free on the disk"):
        storage.require_room()
    storage.reserve.give()
    free = 520 * MIB
    assert [storage.look(at, state) for at in (20.0, 30.0)] == [None, None], "not by enough"
    free = 50 << 30
    storage = on_disk_with(lambda: free, tmp_path)
    assert storage.look(35.0, state) is None
    clear = storage.look(40.0, state)
    assert not clear.low
    script.feed(clear).drop()
    assert [storage.look(at, state) for at in (50.0, 60.0)] == [None, None]
    assert storage.warning is None
    assert storage.reserve.slices == SLICES, "it was filled again"
    storage.release()
    assert not (tmp_path / "reserve").exists()


def test_a_disk_without_room_for_another_checkpoint_is_low(tmp_path: Path) -> None:
    """With checkpoints of gigabytes the disk settles above the mark while every save fails."""
    script = stages.running()
    storage = on_disk_with(lambda: 2 << 30, tmp_path)
    assert [storage.look(at, script.state) for at in (0.0, 10.0)] == [None, None]
    script.feed(
        CheckpointSaved(at=0.0, trial=0, incarnation=1, step=1, save_s=9.0, size_bytes=3 << 30)
    ).drop()
    assert storage.look(20.0, script.state) is None
    low = storage.look(30.0, script.state)
    assert low is not None
    assert "2048 MiB free on the disk, fewer than 3072" in low.what


# ---------------------------------------------------------------- what the search does


def test_below_the_mark_nothing_is_begun_and_what_runs_goes_on() -> None:
    script = Script(devices=2).wants(Start(1)).start().drop()
    script.feed(StorageChanged(at=1.0, low=True, what="100 MiB free")).expect_nothing()
    script.wants(Start(1)).wait(2.0).report(0, 0.5)
    assert not any(isinstance(command, Launch) for command in script.take())
    assert script.trial(0).state.value == "running"
    script.exited(0, "finished").drop().released("d0").drop()
    assert not script.state.finished, "there may be room again"
    script.feed(StorageChanged(at=3.0, low=False, what="room"))
    (begun,) = (command for command in script.take() if isinstance(command, Launch))
    assert (begun.trial, begun.incarnation) == (1, 1)


@pytest.mark.parametrize(("size", "left"), [(1000, {0, 1, 2}), (16 << 30, {2})])
def test_large_checkpoints_of_paused_trials_make_room(size: int, left: set[int]) -> None:
    """With checkpoints of 16 GB the disk was full by midnight, and no trial began before the morning."""
    script = Script(devices=4).wants(*[Start(1)] * 4).start().drop()
    script.feed(
        CheckpointSaved(at=0.0, trial=3, incarnation=1, step=1, save_s=9.0, size_bytes=size)
    )
    for trial in range(3):
        script.drop().decides(Pause(trial)).report(trial, 0.1 * trial).drop().exited(trial, saved=1)
    script.drop().feed(StorageChanged(at=script.now, low=True, what="full")).drop()
    assert {number for number in range(3) if script.trial(number).state.value == "paused"} == left


# ---------------------------------------------------------------- quota: an input/output error to SQLite


class _Refusing:
    """A connection whose commits fail with this code."""

    def __init__(self, connection: sqlite3.Connection, code: int) -> None:
        self._connection = connection
        self.code: int | None = code

    def execute(self, text: str, *arguments: object) -> object:
        if text == "COMMIT" and self.code is not None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            raise error
        return self._connection.execute(text, *arguments)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.mark.parametrize(
    ("code", "full", "raised"),
    [
        (sqlite3.SQLITE_FULL, False, DiskFull),
        (sqlite3.SQLITE_IOERR_WRITE, True, DiskFull),
        (sqlite3.SQLITE_IOERR_WRITE, False, sqlite3.OperationalError),
        (sqlite3.SQLITE_IOERR_FSYNC, True, sqlite3.OperationalError),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, True, sqlite3.OperationalError),
    ],
)
def test_what_is_a_full_disk_and_what_is_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, full: bool, raised: type[Exception]
) -> None:
    """A quota (EDQUOT) looks like a broken disk to SQLite; a failed fsync is one, whatever else is true."""
    monkeypatch.setattr("gpusched.journal.log.is_full", lambda _folder: full)
    journal = Journal.create(tmp_path / "journal.db", META)
    refusing = _Refusing(journal.connection, code)
    journal.connection = refusing
    event, commands = next(iter(sample(1)))
    journal.append(event, commands)
    with pytest.raises(raised) as problem:
        journal.commit()
    assert (str(tmp_path) in str(problem.value)) == (raised is DiskFull), "which of two disks"
    refusing.code = None
    journal.commit()
    journal.close()
    reopened = Journal.open(tmp_path / "journal.db")
    assert len(list(reopened.entries())) == 1, "nothing of it was lost"
    reopened.close()
    assert len(read(tmp_path / "journal.db")) == 1


def test_a_probe_tells_whether_a_folder_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not files.is_full(tmp_path)
    for number, full in ((errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)):
        monkeypatch.setattr(files.os, "write", refusing(number))
        assert files.is_full(tmp_path) == full
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(tmp_path)
    assert not files.is_full(tmp_path)

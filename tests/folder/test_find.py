"""Finding an experiment: which is meant, and whether a daemon holds it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from gpusched.cli import main
from gpusched.errors import InputError
from gpusched.folder.find import as_argument, find, has_daemon
from gpusched.folder.lock import Lock
from gpusched.folder.paths import ExperimentPaths
from tests.rig import as_nobody, refusing

DAY = "20261122"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Experiments whose names begin alike, copied the newest first; the newest is of the longest name."""
    names = ("digits-{}-120000", "digits-{}-120000-2", "digits-8-{}-130000", "digits-big-{}-140000")
    for at, name in enumerate(names):
        folder = tmp_path / "runs" / name.format(DAY)
        folder.mkdir(parents=True)
        (folder / "journal.db").touch()
        (copied := folder / "resolved.json").touch()
        os.utime(copied, (9 - at, 9 - at))
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("digits", f"digits-{DAY}-120000-2"),
        ("digits-8", f"digits-8-{DAY}-130000"),
        ("digits-big", f"digits-big-{DAY}-140000"),
        (f"digits-{DAY}-120000", f"digits-{DAY}-120000"),
        ("last", f"digits-big-{DAY}-140000"),
    ],
)
def test_a_name_is_a_recipe_s_or_an_experiment_s(runs: Path, wanted: str, found: str) -> None:
    assert find(wanted, runs).root.name == found


def test_what_runs_comes_before_what_is_newer_for_a_command_that_steers(runs: Path) -> None:
    older = find(f"digits-{DAY}-120000", runs)
    daemon = Lock.take(older.lock)
    assert find("digits", runs).root.name == f"digits-{DAY}-120000-2"
    assert find("digits", runs, running_first=True) == older
    assert find(None, runs, running_first=True) == older
    assert find(None, runs).root.name == f"digits-big-{DAY}-140000"
    daemon.release()
    assert find("digits", runs, running_first=True).root.name == f"digits-{DAY}-120000-2"


def test_a_search_is_named_as_a_command_finds_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ``run --dir`` people were told to call `gpusched best`, which looked elsewhere."""
    newest, other = find("digits-big", runs), find("digits-8", runs)
    assert as_argument(newest) == f" {newest.root}"
    monkeypatch.setenv("GPUSCHED_RUNS", str(runs))
    assert as_argument(newest) == ""
    assert as_argument(other) == f" {other.root.name}"


@pytest.mark.parametrize("wanted", ["dig", "digits-b", "big", f"digits-{DAY}"])
def test_part_of_a_name_is_no_name(runs: Path, wanted: str) -> None:
    with pytest.raises(InputError, match=f"no search is called '{wanted}'"):
        find(wanted, runs)


def test_a_folder_beside_that_is_called_like_the_recipe_is_not_meant(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    Path("digits").mkdir()
    assert find("digits", runs).root.name == f"digits-{DAY}-120000-2"
    Path("other").mkdir()
    with pytest.raises(InputError, match="'other'"):
        find("other", runs)
    with pytest.raises(InputError, match=r"^digits is not a search: no journal.db is in it"):
        find("./digits", runs)


def error_of(*words: str) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        main(words)
    return told.getvalue()


def test_experiments_of_another_user_are_left_out_and_named_where_they_are_meant() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for name in ("ours", "theirs"):
            (runs / name).mkdir(parents=True)
            (runs / name / "journal.db").touch()
        os.utime(runs / "theirs" / "journal.db", (0, 0))
        for path in (runs.parent, runs, runs / "ours"):
            path.chmod(0o755)
        (runs / "theirs").chmod(0o700 if os.getuid() == 0 else 0)

        def found(wanted: str | None) -> str:
            return as_nobody(lambda: find(wanted, runs).root.name)

        assert found(None) == "ours"
        assert "no search is called 'theirs'" in found("theirs")
        assert found(str(runs / "theirs")).endswith("is not a search: it is not open to this user")
        assert error_of("gc", str(runs / "ours"))  # an empty journal; imports what nobody may not
        (runs / "ours" / "lock").chmod(0)
        told = f"gpusched: {runs / 'ours' / 'lock'}: Permission denied; run this as a user who"
        assert as_nobody(lambda: error_of("gc", str(runs / "ours"))).startswith(told)
        runs.chmod(0o700 if os.getuid() == 0 else 0)
        closed = f"InputError: {runs} is not open to this user; --dir DIR looks elsewhere"
        assert found(None) == closed
        runs.chmod(0o700)
        (runs / "theirs").chmod(0o700)


# ---------------------------------------------------------------- the lock


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    found = ExperimentPaths(tmp_path)
    found.lock.touch()
    return found


def test_observers_do_not_take_each_other_for_a_daemon(paths: ExperimentPaths) -> None:
    wrong: list[bool] = []

    def look() -> None:
        wrong.extend(True for _ in range(3000) if has_daemon(paths))

    observers = [threading.Thread(target=look) for _ in range(4)]
    for observer in observers:
        observer.start()
    for observer in observers:
        observer.join()
    assert not wrong
    lock = Lock.take(paths.lock)
    assert has_daemon(paths)
    lock.release()


def test_a_daemon_that_starts_does_not_take_an_observer_for_another(paths: ExperimentPaths) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            has_daemon(paths)
            time.sleep(0.0005)

    observers = [threading.Thread(target=look) for _ in range(3)]
    for observer in observers:
        observer.start()
    try:
        for _ in range(100):
            Lock.take(paths.lock).release()
    finally:
        over.set()
        for observer in observers:
            observer.join()


def test_a_second_daemon_is_refused_soon_and_told_of_the_first(paths: ExperimentPaths) -> None:
    lock = Lock.take(paths.lock)
    with pytest.raises(InputError, match=f"has a daemon already .pid {os.getpid()} on "):
        Lock.take(paths.lock)
    lock.release()


def test_a_full_disk_keeps_nobody_from_the_lock(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume failed with a traceback, before it could say that there is no room."""
    monkeypatch.setattr("os.pwrite", refusing(errno.ENOSPC))
    lock = Lock.take(paths.lock)
    assert has_daemon(paths)
    lock.release()

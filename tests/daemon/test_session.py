"""Asking about an experiment whose daemon comes or goes at that moment."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cli import attach, common
from gpusched.daemon import session
from gpusched.daemon.session import Client
from gpusched.errors import GpuschedError, InputError
from gpusched.folder.lock import Lock
from gpusched.folder.paths import ExperimentPaths
from gpusched.sim.setup import Setup
from scripts.kept import simulate_into


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    made = ExperimentPaths(tmp_path / "search-1")
    made.root.mkdir()
    made.final_view.write_text(json.dumps({"state": "ended"}))
    return made


@pytest.fixture
def listening(paths: ExperimentPaths) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(paths.socket))
        listener.listen()
        yield listener


def hold(paths: ExperimentPaths) -> int:
    """The daemon's lock, as a descriptor: closing it is what a daemon's end does."""
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_daemon_that_ends_while_it_is_asked_leaves_the_answer_to_its_files(
    paths: ExperimentPaths, listening: socket.socket
) -> None:
    lock = hold(paths)

    def end() -> None:
        connection, _ = listening.accept()
        connection.recv(1000)
        os.close(lock)
        connection.close()

    thread = threading.Thread(target=end)
    thread.start()
    view = session.view(paths)
    assert view["state"] == "ended"
    assert view["folder"] == str(paths.root), "where it lies now, wherever it was made"
    thread.join()


@pytest.mark.parametrize("listens", [False, True])
def test_a_daemon_that_never_answers_is_an_error_that_names_its_log(
    paths: ExperimentPaths,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    listens: bool,
) -> None:
    """It replays its journal, is stopped, or is on a disk that takes seconds: it is not said to be gone."""
    monkeypatch.setattr(session, "PATIENCE_S", 0.1)
    monkeypatch.setattr(attach, "LOOK_S", 0.1)
    lock = hold(paths)
    if listens:
        request.getfixturevalue("listening")
    for asked in (lambda: session.view(paths), lambda: session.ask(paths, "stop")):
        with pytest.raises(GpuschedError, match=r"has not answered for 0.1 s\b.*daemon\.log"):
            asked()
    if listens:
        assert next(attach.Stream(paths).lines()) is None, "a follower waits for it"
        assert attach.Interrupts(paths)().startswith("stopping"), "it is sent, and read in time"
    os.close(lock)


def test_ctrl_c_leaves_a_search_that_continues_after_the_end_that_was_watched(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``watch`` hung until the search that was resumed meanwhile was over."""
    monkeypatch.setattr(common, "wait_for_end", lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        attach.conclude(paths, as_json=False, interrupts=None)
    signal.signal(signal.SIGINT, before)


def test_a_daemon_of_another_machine_is_named(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client names the other machine at once, and does not say that the search is not running."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "first")
        lock = Lock.take(paths.lock)
    for asked in (lambda: session.view(paths), lambda: session.ask(paths, "stop")):
        with pytest.raises(InputError, match=r"^search-1: its daemon runs on first; run this"):
            asked()
    lock.release()
    assert Client.connect(paths.socket) is None


@pytest.mark.parametrize("kept", ['{"experiment": "sim"}', "{", "[]"])
def test_a_last_view_that_is_none_is_made_from_the_journal(kept: str, tmp_path: Path) -> None:
    """As where the daemon could not word it: ``run`` died of a missing key."""
    result, folder = simulate_into(tmp_path, Setup(deadline_s=2.0, atoms=2))
    paths = ExperimentPaths(folder)
    paths.final_view.write_text(kept)
    view = session.view(paths)
    assert (view["state"], view["best"]["metric"]) == ("finished", result.best)

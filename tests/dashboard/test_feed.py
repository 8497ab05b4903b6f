"""Threads that bring views, and find a daemon that comes back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gpusched.dashboard.feed import LINES, Feed, Logs, LogTail
from gpusched.dashboard.model import Standing, to_json
from gpusched.errors import DamagedState, GpuschedError
from gpusched.folder.paths import ExperimentPaths
from tests.rig import PATIENCE_S

RUNNING = Standing(experiment="x", daemon_pid=1)
OVER = Standing(experiment="x", state="finished")


class Inbox:
    """Record of what was posted."""

    def __init__(self) -> None:
        self.words: list[tuple[str, Any]] = []
        self._came = threading.Condition()

    def __call__(self, kind: str, value: Any) -> None:
        with self._came:
            self.words.append((kind, value))
            self._came.notify_all()

    def wait(self, kind: str, limit_s: float = PATIENCE_S) -> Any:
        """Return the last value of this kind, once there is one; and forget all."""
        with self._came:
            assert self._came.wait_for(lambda: any(k == kind for k, _ in self.words), limit_s)
            found = [value for k, value in self.words if k == kind][-1]
            self.words.clear()
            return found


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def run(feed: Feed) -> None:
    """Let it come to its end."""
    feed.start()
    feed.join(PATIENCE_S)
    assert not feed.is_alive()


@pytest.mark.parametrize("last", [DamagedState("the journal is damaged"), TypeError("no view")])
def test_views_pass_as_they_are_or_as_json_and_a_daemon_that_comes_back_is_found(
    inbox: Inbox, last: Exception
) -> None:
    """Whoever watched a search to its end saw that end for good, though the search was resumed."""
    asked = iter(
        [[RUNNING], GpuschedError("no answer"), [], [OVER], [to_json(RUNNING), None], last]
    )

    def frames() -> list[Any]:
        found = next(asked)
        if isinstance(found, Exception):
            raise found
        return found

    pauses: list[float] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

    feed = Feed(frames, inbox)
    feed._is_over = Impatient()
    run(feed)
    views = [("view", RUNNING), ("note", "no answer"), ("view", OVER), ("view", RUNNING)]
    assert inbox.words == [*views, ("failed", last)], "what cannot get better ends it"
    assert pauses == [1.0, 2.0, 4.0, 8.0, 1.0], "it should be asked less and less often"


def test_a_feed_is_stopped_while_it_waits(inbox: Inbox) -> None:
    feed = Feed(lambda: iter([RUNNING]), inbox)
    feed.start()
    inbox.wait("view")
    feed.stop()
    feed.join(PATIENCE_S)
    assert not feed.is_alive()


# ---------------------------------------------------------------- logs and history


def write(folder: Path, launch: int, name: str, data: bytes) -> Path:
    logs = ExperimentPaths(folder).trial(7).logs(launch)
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / name).open("ab") as file:
        file.write(data)
    return logs / name


def test_logs_of_all_launches_from_the_first_line(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs(None) == logs(7) == []
    write(tmp_path, 1, "rank-0.out", b"one\ntwo, no newline")
    write(tmp_path, 10, "rank-0.err", b"Traceback\n")
    write(tmp_path, 2, "rank-0.out", b"")
    first = ["── launch 1, rank-0.out", "one"]
    last = ["── launch 10, rank-0.err", "Traceback"]
    assert logs(7) == [*first, "two, no newline", *last]
    write(tmp_path, 1, "rank-0.out", b" yet\nthree\n")
    assert logs(7) == [*first, "two, no newline yet", "three", *last]


def test_bytes_that_are_no_text_are_harmless(tmp_path: Path) -> None:
    write(tmp_path, 1, "rank-0.out", b"\xff\xfe\x1b[2J\x1b]0;title\x07ok\x00\n 1%\r 2%\r\n")
    assert Logs(tmp_path)(7)[1:] == ["\ufffd\ufffdok\ufffd", " 2%"]


def test_of_a_long_log_the_newest_lines_are_kept_and_the_first_one_shown_changes_seldom(
    tmp_path: Path,
) -> None:
    logs, firsts = Logs(tmp_path), set()
    for number in range(500):
        for rank in (0, 1):
            text = "".join(f"rank {rank} line {10 * number + n}\n" for n in range(10))
            write(tmp_path, 1, f"rank-{rank}.out", text.encode())
        if number % 10 == 0:
            shown = logs(7)
            assert len(shown) <= LINES
            assert shown[-1] == f"rank 1 line {10 * number + 9}"
    tail = LogTail(tmp_path / "log")
    for number in range(5 * LINES):
        with (tmp_path / "log").open("a") as file:
            file.write(f"{number}\n")
        if number % 100 == 0:
            firsts.add(tail.lines()[0])
    assert len(tail.lines()) <= LINES
    assert len(firsts) < 12

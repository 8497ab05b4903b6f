"""Threads that bring views, and find a daemon that comes back."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.dashboard import feed as feeds
from gpusched.dashboard.feed import Feed, Loupe, Mailbox
from gpusched.dashboard.model import View, to_json
from gpusched.errors import DamagedState, GpuschedError
from gpusched.folder.paths import ExperimentPaths

RUNNING = View(experiment="x", daemon_pid=1)
OVER = View(experiment="x", state="finished")


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    made = Mailbox()
    yield made
    made.close()


def collect(mailbox: Mailbox, until: str, limit_s: float = 60.0) -> list[tuple[str, Any]]:
    """Messages until one of this kind came."""
    found: list[tuple[str, Any]] = []
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        select.select([mailbox.fileno()], (), (), 0.2)
        found += mailbox.take()
        if any(kind == until for kind, _ in found):
            return found
    raise AssertionError(f"no {until} came: {found}")


def test_the_mailbox_wakes_whoever_waits(mailbox: Mailbox) -> None:
    assert select.select([mailbox.fileno()], (), (), 0)[0] == []
    threading.Timer(0.05, mailbox.post, ("note", "hello")).start()
    assert collect(mailbox, "note") == [("note", "hello")]
    assert select.select([mailbox.fileno()], (), (), 0)[0] == []


def test_a_flood_is_kept_and_a_closed_mailbox_takes_nothing() -> None:
    mailbox = Mailbox()
    for number in range(100_000):
        mailbox.post("view", number)
    assert [value for _, value in mailbox.take()] == list(range(100_000))
    mailbox.close()
    mailbox.post("view", 1)
    late = threading.Thread(target=mailbox.post, args=("view", 2))
    late.start()
    late.join()
    assert mailbox.take() == []


def test_views_pass_as_they_are_or_as_json_until_the_end(mailbox: Mailbox) -> None:
    feed = Feed(lambda: iter([to_json(RUNNING), None, RUNNING, OVER, RUNNING]), mailbox)
    feed.start()
    feed.join(60)
    assert not feed.is_alive()
    assert mailbox.take() == [("view", RUNNING), ("silence", ""), ("view", RUNNING), ("view", OVER)]


def test_a_daemon_that_comes_back_is_found(mailbox: Mailbox) -> None:
    asked = 0

    def frames() -> Iterator[View]:
        nonlocal asked
        asked += 1
        if asked == 1:
            yield RUNNING
        elif asked == 2:
            raise GpuschedError("its daemon does not answer")
        elif asked < 5:
            return
        else:
            yield OVER

    pauses: list[float] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

    feed = Feed(frames, mailbox, Impatient())
    feed.start()
    feed.join(60)
    assert mailbox.take() == [
        ("view", RUNNING),
        ("silence", ""),
        ("silence", "its daemon does not answer"),
        ("silence", ""),
        ("silence", ""),
        ("view", OVER),
    ]
    assert pauses == [1.0, 2.0, 4.0, 8.0], "it should be asked less and less often"


@pytest.mark.parametrize("error", [DamagedState("the journal is damaged"), TypeError("no view")])
def test_what_cannot_get_better_ends_it(mailbox: Mailbox, error: Exception) -> None:
    def frames() -> Iterator[View]:
        raise error
        yield RUNNING

    feed = Feed(frames, mailbox)
    feed.start()
    feed.join(60)
    assert mailbox.take() == [("failed", error)]


def test_a_feed_is_stopped_while_it_waits(mailbox: Mailbox) -> None:
    feed = Feed(lambda: iter([RUNNING]), mailbox)
    feed.start()
    collect(mailbox, "silence")
    feed.stop()
    feed.join(60)
    assert not feed.is_alive()


def test_the_loupe_looks_at_what_is_selected(mailbox: Mailbox, tmp_path: Path) -> None:
    logs = ExperimentPaths(tmp_path).trial(7).logs(1)
    logs.mkdir(parents=True)
    (logs / "rank-0.out").write_text("epoch 1\n")
    asked: list[int] = []

    def explain(trial: int) -> list[str]:
        asked.append(trial)
        if trial == 8:
            raise RuntimeError("whatever")
        return [f"story of {trial}"]

    loupe = Loupe(mailbox, tmp_path, explain)
    loupe.start()
    assert asked == []
    loupe.look(7)
    ((_, (trial, detail)),) = collect(mailbox, "detail")
    assert (trial, detail.story, detail.log) == (7, ("story of 7",), ("epoch 1",))
    loupe.look(8)
    found = [value for _, value in collect(mailbox, "detail")]
    assert (8, feeds.Detail()) in found
    loupe.look(None)
    loupe.stop()
    loupe.join(60)
    assert not loupe.is_alive()

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpusched.worker import channel as module
from gpusched.worker.channel import Channel
from tests.worker.fakes import PATIENCE_S, Bench, FakeDaemon, at_step, daemon


@pytest.fixture
def line(bench: Bench) -> Iterator[Channel]:
    made = Channel(bench.root, trial=7, incarnation=2)
    yield made
    made.close()


def settle(fake: FakeDaemon, count: int) -> None:
    """Wait until the daemon's thread has seen this many frames."""
    until = time.monotonic() + PATIENCE_S
    while len(fake.frames) < count:
        assert time.monotonic() < until, f"only {fake.frames}"
        time.sleep(0.01)


def test_hello_then_one_reply_a_report(bench: Bench, line: Channel) -> None:
    with daemon(bench, at_step(save=2, leave=4, **{"yield": 3})) as fake:
        told = [line.report(n, n, 0.5, {"accuracy": 0.1 * n, "loss": "nan"}) for n in range(1, 6)]
        assert told == ["continue", "save", "yield", "leave", "continue"]
        hello, first = fake.frames[:2]
    assert hello == {"hello": "rank", "trial": 7, "incarnation": 2, "pid": os.getpid()}
    metrics = {"accuracy": 0.1, "loss": "nan"}
    assert first == {"report": 1, "step": 1, "step_time_s": 0.5, "metrics": metrics}


def test_without_a_daemon_training_goes_on_and_attempts_get_rarer(
    bench: Bench, line: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    attempts = []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module.os, "open", lambda *a: attempts.append(now) or real_open(*a))
    for _ in range(4000):
        assert line.report(1, 1, None, {}) == "continue"
        now += 0.01
    gaps = [round(after - before, 3) for before, after in itertools.pairwise(attempts)]
    assert gaps[0] == pytest.approx(0.1, abs=0.02)
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(0.5, abs=0.02)


def test_a_daemon_that_comes_back_gets_the_next_report_and_only_that(
    bench: Bench, line: Channel
) -> None:
    with daemon(bench):
        assert line.report(1, 1, None, {}) == "continue"
    assert line.report(2, 2, None, {}) == "continue"
    with daemon(bench, at_step(save=4)) as fake:
        line._not_before_s = 0.0
        assert line.report(4, 4, None, {}) == "save"
        assert [frame.get("report", "hello") for frame in fake.frames] == ["hello", 4]


def test_a_daemon_that_dies_while_we_wait(bench: Bench, line: Channel) -> None:
    with daemon(bench, lambda report: None):
        assert line.report(1, 1, None, {}) == "continue"
        assert line.report(2, 2, None, {}) == "continue"


def test_a_daemon_that_is_stuck_is_waited_for_only_so_long(
    bench: Bench, line: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLY_WAIT_S", 0.05)
    with daemon(bench, lambda report: b""):
        assert line.report(1, 1, None, {}) == "continue"
        assert line._socket is None


@pytest.mark.parametrize(
    "nonsense",
    [
        b"not json\n",
        b"[1, 2]\n",
        b'{"go": "leave"}\n',
        b'{"seq": 0, "go": "leave"}\n',
        b'{"seq": 1, "go": "explode"}\n',
        b"[" * 60_000 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_nonsense_is_passed_over(bench: Bench, line: Channel, nonsense: bytes) -> None:
    good = json.dumps({"seq": 2, "go": "yield"}).encode() + b"\n"
    replies = {1: nonsense + b'{"seq": 1, "go": "continue"}\n', 2: nonsense + good}
    with daemon(bench, lambda report: replies[report["report"]]):
        assert line.report(1, 1, None, {}) == "continue"
        assert line.report(2, 2, None, {}) == "yield"


def test_an_endless_line_is_hung_up_on(bench: Bench, line: Channel) -> None:
    with daemon(bench, lambda report: b"x" * 300_000):
        assert line.report(1, 1, None, {}) == "continue"
        assert line._socket is None


def test_a_reply_in_pieces(bench: Bench, line: Channel) -> None:
    def slowly(report: dict[str, object]) -> bytes:
        time.sleep(0.01)
        return (
            b'"save"}\n'
            if report["report"] == 2
            else b'{"seq": 1, "go": "yield"}\n{"seq": 2, "go": '
        )

    with daemon(bench, slowly):
        assert line.report(1, 1, None, {}) == "yield"
        assert line.report(2, 2, None, {}) == "save"


def test_saved_is_told_and_told_later_if_need_be(bench: Bench, line: Channel) -> None:
    line.saved(3, 0.25, 1000)
    line.saved(4, 0.5, 2000)
    with daemon(bench) as fake:
        line._not_before_s = 0.0
        assert line.connect()
        line.saved(5, 0.1, 3000)
        settle(fake, 3)
        assert fake.of_kind("saved") == [
            {"saved": 4, "save_s": 0.5, "bytes": 2000},
            {"saved": 5, "save_s": 0.1, "bytes": 3000},
        ]


def test_a_forked_child_does_not_hold_the_line_open(bench: Bench, line: Channel) -> None:
    with daemon(bench):
        assert line.connect()
        child = os.fork()
        if child == 0:
            os._exit(0 if line._socket is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert line.report(1, 1, None, {}) == "continue"
        assert line._socket is not None


real_open = os.open

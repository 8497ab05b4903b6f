from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpusched.protocol import Answer, RankHello, Report, Saved, encode
from gpusched.worker import channel as module
from gpusched.worker.channel import Channel, clean_metrics
from tests.rig import PATIENCE_S, wait_until
from tests.worker.fakes import Bench, FakeDaemon, at_step, daemon


@pytest.fixture
def line(bench: Bench) -> Iterator[Channel]:
    made = Channel(bench.root, trial=7, incarnation=2)
    yield made
    made._close()


def report(seq: int, **metrics: float | str) -> Report:
    return Report(2, seq, seq, 0.5, dict(metrics))


def settle(fake: FakeDaemon, count: int) -> None:
    """Wait until the daemon's thread has seen this many frames."""
    wait_until(lambda: len(fake.frames) >= count, f"{count} frames")


def test_without_a_daemon_training_goes_on_and_attempts_are_rare(
    bench: Bench, line: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, attempts, real_open = 100.0, [], os.open
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(os, "open", lambda *a: attempts.append(now) or real_open(*a))
    for _ in range(400):
        assert line.report(report(1)) == "continue"
        now += 0.01
    assert 7 <= len(attempts) <= 8


def test_a_daemon_that_comes_back_gets_the_next_report_and_only_that(
    bench: Bench, line: Channel
) -> None:
    with daemon(bench):
        assert line.report(report(1)) == "continue"
    assert line.report(report(2)) == "continue"
    with daemon(bench, at_step(save=4)) as fake:
        wait_until(line.connect, "the daemon to be found")
        assert line.report(report(4)) == "save"
        assert fake.frames == [RankHello(7, 2), report(4)]


def test_a_daemon_that_is_stuck_is_waited_for_only_so_long(
    bench: Bench, line: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLY_WAIT_S", 0.05)
    with daemon(bench, lambda report: b"") as fake:
        assert line.report(report(1)) == "continue"
        fake.wait_for_silence()


@pytest.mark.parametrize("nonsense", [b"not json\n", b"\xff\xfe\n", b"x" * 300_000])
def test_what_is_no_frame_is_hung_up_on(bench: Bench, line: Channel, nonsense: bytes) -> None:
    with daemon(bench, lambda report: nonsense) as fake:
        assert line.report(report(1)) == "continue"
        fake.wait_for_silence()


def test_a_reply_in_pieces(bench: Bench, line: Channel) -> None:
    both = encode(Answer(1, "yield")) + encode(Answer(2, "save"))

    def slowly(report: Report) -> bytes:
        time.sleep(0.01)
        return both[:-9] if report.seq == 1 else both[-9:]

    with daemon(bench, slowly):
        assert line.report(report(1)) == "yield"
        assert line.report(report(2)) == "save"


def test_saved_is_told_and_told_later_if_need_be(bench: Bench, line: Channel) -> None:
    line.saved(3, 0.25, 1000)
    line.saved(4, 0.5, 2000)
    with daemon(bench) as fake:
        wait_until(line.connect, "the daemon to be found")
        line.saved(5, 0.1, 3000)
        settle(fake, 3)
        assert fake.of_kind(Saved) == [
            Saved(4, 0.5, 2000),
            Saved(5, 0.1, 3000),
        ]


class Interrupted(Channel):
    """A line that another thread finds broken just after ``saved`` found it whole."""

    def connect(self) -> bool:
        connected = super().connect()
        other = threading.Thread(target=self._close_in_turn)
        other.start()
        other.join(0.2)  # for ever where closing waits, as it should, until the frame is sent
        return connected

    def _close_in_turn(self) -> None:
        with self._lock:
            self._close()


def test_a_line_closed_while_a_save_thread_sends(bench: Bench) -> None:
    line = Interrupted(bench.root, trial=7, incarnation=2)
    with daemon(bench) as fake:
        line.saved(3, 0.25, 1000)
        settle(fake, 2)
    assert fake.of_kind(Saved) == [Saved(3, 0.25, 1000)]


class Overtaken:
    """A rank's socket whose wait for an answer ends just after a save thread has met the next daemon."""

    def __init__(self, real: Any, meanwhile: Callable[[], None]) -> None:
        self._real, self._meanwhile = real, meanwhile

    def recv(self, size: int) -> bytes:
        data: bytes = self._real.recv(size)
        if not data and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
            raise TimeoutError
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_report_waits_on_its_own_connection_alone(
    bench: Bench, line: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon dies while a report waits, and a save thread is the first to find the next one."""
    monkeypatch.setattr(module, "REPLY_WAIT_S", PATIENCE_S)
    with ExitStack() as stack:

        def save_twice() -> None:
            (bench.root / "daemon.sock").unlink()
            stack.enter_context(daemon(bench))
            for step in (3, 4):  # the first finds the line broken, the second may connect anew
                thread = threading.Thread(target=line.saved, args=(step, 0.25, 1000))
                thread.start()
                thread.join()

        with daemon(bench, lambda report: None):
            assert line.connect()
            line._socket = Overtaken(line._socket, save_twice)
            began_s = time.monotonic()
            assert line.report(report(1)) == "continue"
            assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (3, 3),
        (True, 1),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1 << 62, 1 << 62),
        (1 << 70, float(1 << 70)),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(0.25), 0.25),
        (np.array([0.25]), 0.25),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([2]), 2),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(math.nan), "nan"),
    ],
)
def test_what_counts_as_a_number(value: Any, expected: Any) -> None:
    clean = clean_metrics({"m": value}, None)["m"]
    assert clean == expected
    assert type(clean) is type(expected)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0.5", "'m' is str '0.5', not a number"),
        (None, "'m' is NoneType None, not a number"),
        ([0.5], r"'m' is list \[0.5\], not a number"),
        (1j, "'m' is complex 1j, not a number"),
        (torch.zeros(3), r"'m' has shape \(3,\): report one number, e.g. m.mean\(\)"),
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
        ("x" * 1000, r"xxx\.\.\., not a number"),
    ],
)
def test_what_does_not(value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        clean_metrics({"accuracy": 0.5, "m": value}, "accuracy")


def test_the_recipes_metric_must_be_there() -> None:
    with pytest.raises(
        ValueError, match=r"has loss, val_accuracy but not 'accuracy'.*metric: val_accuracy"
    ):
        clean_metrics({"loss": 1.0, "val_accuracy": 0.5}, "accuracy")
    with pytest.raises(ValueError, match=r"report lacks 'accuracy'.*alone, with step=epoch \+ 1"):
        clean_metrics({}, "accuracy")

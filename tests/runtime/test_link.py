"""A trial without a daemon: when it is asked to leave, when it is ended, and what rank 0 makes of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpusched.protocol import Report
from gpusched.runtime.link import HARD_FACTOR, Tether
from gpusched.worker.channel import Channel


def test_a_tether_runs_out_and_is_given_back(tmp_path: Path) -> None:
    leave = tmp_path / "leave"
    now_s = time.monotonic()
    tether = Tether(leave, 10.0)
    tether.heard(now_s)
    assert not tether.is_over(now_s + 9)
    assert not leave.exists()
    assert not tether.is_over(now_s + 11)
    assert leave.exists(), "it is asked"
    tether.heard(now_s + 12)
    assert not leave.exists(), "a daemon came back in time"
    assert not tether.is_over(now_s + 21)
    assert not tether.is_over(now_s + 23)
    assert leave.exists()
    assert tether.is_over(now_s + 13 + 10 * HARD_FACTOR), "it does not leave: it is ended"


@pytest.mark.parametrize("asked", [False, True])
def test_a_rank_without_a_daemon_looks_whether_it_is_to_leave(tmp_path: Path, asked: bool) -> None:
    leave = tmp_path / "leave"
    channel = Channel(tmp_path, 0, 1, leave)
    if asked:
        leave.touch()
    assert channel.report(Report(1, 1, 1)) == ("yield" if asked else "continue")
    channel.close()


def test_a_rank_with_nobody_to_ask_goes_on(tmp_path: Path) -> None:
    assert Channel(tmp_path, 0, 1).report(Report(1, 1, 1)) == "continue"

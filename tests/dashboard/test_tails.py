"""The end of a trial's log."""

from __future__ import annotations

import os
from pathlib import Path

from gpusched.dashboard.feed import TAIL_BYTES, tail
from gpusched.folder.paths import ExperimentPaths


def write(folder: Path, incarnation: int, name: str, data: bytes, changed: float = 0.0) -> None:
    logs = ExperimentPaths(folder).trial(7).logs(incarnation)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / name).write_bytes(data)
    os.utime(logs / name, (changed, changed))


def test_nothing_was_printed(tmp_path: Path) -> None:
    assert tail(tmp_path, 7) == ("", ())
    write(tmp_path, 1, "rank-0.out", b"")
    assert tail(tmp_path, 7) == ("", ())


def test_the_latest_launch_that_printed_and_what_was_written_last(tmp_path: Path) -> None:
    write(tmp_path, 1, "rank-0.out", b"old\n", 5)
    write(tmp_path, 2, "rank-0.out", b"one\ntwo\n", 7)
    write(tmp_path, 2, "rank-0.err", b"warning\n", 6)
    write(tmp_path, 10, "rank-0.out", b"")
    assert tail(tmp_path, 7) == ("launch 2, rank-0.out", ("one", "two"))
    write(tmp_path, 2, "rank-0.err", b"Traceback\n", 9)
    assert tail(tmp_path, 7) == ("launch 2, rank-0.err", ("Traceback",))
    write(tmp_path, 10, "rank-0.out", b"new, no newline yet", 1)
    assert tail(tmp_path, 7) == ("launch 10, rank-0.out", ("new, no newline yet",))


def test_a_long_log_costs_only_its_end(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(20_000)]
    write(tmp_path, 1, "rank-0.out", "\n".join(lines).encode())
    _, last = tail(tmp_path, 7, lines=3)
    assert last == ("line 19997", "line 19998", "line 19999")
    _, all_of_it = tail(tmp_path, 7, lines=10**6)
    assert sum(len(line) + 1 for line in all_of_it) <= TAIL_BYTES
    assert all_of_it[0] in lines


def test_bytes_that_are_no_text_are_harmless(tmp_path: Path) -> None:
    write(tmp_path, 1, "rank-0.out", b"\xff\xfe\x1b[2J\x1b]0;title\x07ok\x00\n 1%\r 2%\r\n")
    _, lines = tail(tmp_path, 7)
    assert lines == ("\ufffd\ufffdok\ufffd", "2%")
    write(tmp_path, 1, "rank-0.out", b"x" * 100_000)
    (line,) = tail(tmp_path, 7)[1]
    assert len(line) == 1000

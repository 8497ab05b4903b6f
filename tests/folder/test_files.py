"""Logs are read on as they grow, and a disk that refuses their lines ends no search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.folder import files
from gpusched.folder.files import read_from


def test_a_log_is_read_on_from_where_it_was_left(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.out"
    log.write_bytes(b"one\ntw")
    assert read_from(log, 0, is_growing=True) == (["one"], 4)
    assert read_from(log, 4) == (["tw"], 6)
    log.write_bytes(b"one\ntwo\n\xff\n")
    assert read_from(log, 4, is_growing=True) == (["two", "\ufffd"], 10)
    assert read_from(log, 10) == ([], 10)
    log.write_bytes(b"anew\n")
    assert read_from(log, 10) == (["anew"], 5), "a file that was cut is read from its beginning"


def test_of_a_very_long_log_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 20)
    log = tmp_path / "rank-0.out"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(10)) + b"torn")
    (left_out, *lines), offset = read_from(log, 0, is_growing=True)
    assert left_out == f"[gpusched: 54 bytes before this are in {log}]"
    assert lines == ["line 8", "line 9"]
    assert read_from(log, offset) == (["torn"], 74)


PRINTS = """
import sys, traceback
from gpusched.folder.files import write_unfailingly
write_unfailingly()
for number in range(3):
    print("line", number, "\\ud800", flush=True)
print("to the other", file=sys.stderr)
"""


def test_a_disk_that_refuses_a_line_is_no_reason_to_end() -> None:
    full = Path("/dev/full")
    with full.open("wb") as log:
        done = subprocess.run([sys.executable, "-c", PRINTS], stdout=log, stderr=log)
    assert done.returncode == 0


def test_what_can_be_written_is() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True)
    assert done.stdout.decode() == "".join(f"line {n} \\ud800\n" for n in range(3))
    assert done.stderr.decode() == "to the other\n"

"""The cap on a rank's streams: bounded on disk, both ends kept, shown with what is missing."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.folder import logcap
from gpusched.folder.logcap import LogCap, read_from

KIB = 1 << 10


def small_cap(folder: Path) -> LogCap:
    return LogCap(folder, first=64 * KIB, last=128 * KIB, step=64 * KIB)


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def write(descriptor: int, begin: int, count: int) -> None:
    text = "".join(f"line {number:08d}\n" for number in range(begin, begin + count))
    os.write(descriptor, text.encode())


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.out"
    path.touch()
    return path


def flood(path: Path, cap: LogCap, lines: int = 200_000) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    for begin in range(0, lines, 2000):
        write(descriptor, begin, 2000)
        cap.look(0.0)
        assert on_disk(path) < 400 * KIB
    os.close(descriptor)


def test_both_ends_of_a_flood_stay_and_the_rest_is_said(stream: Path) -> None:
    cap = small_cap(stream.parent)
    flood(stream, cap)
    cap.close()
    lines, offset = read_from(stream, 0)
    assert offset == stream.stat().st_size
    gaps = [number for number, line in enumerate(lines) if line.startswith("[gpusched: ")]
    assert len(gaps) == 1
    assert lines[gaps[0]] == "[gpusched: 2 MiB of output dropped here]"
    first, last = lines[: gaps[0]], lines[gaps[0] + 1 :]
    assert first == [f"line {number:08d}" for number in range(len(first))]
    assert last == [f"line {number:08d}" for number in range(200_000 - len(last), 200_000)]
    assert len(first) >= 64 * KIB // 14 - 1
    assert len(last) >= 128 * KIB // 14 - 1
    assert read_from(stream, offset) == ([], offset)


def test_a_quiet_stream_is_left_alone(stream: Path) -> None:
    cap = small_cap(stream.parent)
    stream.write_text("one line\n")
    cap.look(0.0)
    cap.close()
    assert read_from(stream, 0) == (["one line"], 9)


def refuse(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel fail this one call of a log cap as if it did not know it."""

    class Library(ctypes.CDLL):
        def __getattr__(self, name: str) -> Any:
            return fail if name == call else super().__getattr__(name)

    def fail(*_: object) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(
        logcap,
        "ctypes",
        SimpleNamespace(CDLL=Library, c_longlong=ctypes.c_longlong, get_errno=ctypes.get_errno),
    )


def test_where_holes_cannot_be_punched_the_stream_is_cut_back(
    stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse("fallocate", monkeypatch)
    cap = small_cap(stream.parent)
    flood(stream, cap)
    cap.close()
    lines, _ = read_from(stream, 0)
    assert lines[0] == "line 00000000"
    assert lines[-1] == "line 00199999"


def test_a_file_in_the_way_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "rank-0.out").mkdir()
    (tmp_path / "rank-1.out").symlink_to("/dev/full")
    cap = small_cap(tmp_path)
    cap.look(0.0)
    cap.close()
    small_cap(tmp_path / "nowhere").close()

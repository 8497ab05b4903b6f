"""The end of a trial's log, read from the experiment's folder by whoever looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpusched.folder.paths import ExperimentPaths
from gpusched.text import log_line

#: Read from the end of a log; a line longer than this is cut.
TAIL_BYTES = 32 * 1024


def tail(folder: Path, trial: int, lines: int = 100) -> tuple[str, tuple[str, ...]]:
    """A name for the log, and its last lines, made safe for a terminal; empty if nothing was printed.

    Of the latest incarnation that printed anything, rank 0's output or errors, whichever was written last.
    """
    for logs in _incarnations(ExperimentPaths(folder).trial(trial).root / "logs"):
        written = [path for path in (logs / "rank-0.out", logs / "rank-0.err") if _size(path)]
        if written:
            path = max(written, key=_changed)
            return f"launch {logs.name}, {path.name}", _last(path, lines)
    return "", ()


def _incarnations(logs: Path) -> Iterator[Path]:
    """The latest first."""
    try:
        known = [path for path in logs.iterdir() if path.name.isdigit()]
    except OSError:
        return iter(())
    return iter(sorted(known, key=lambda path: -int(path.name)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _last(path: Path, lines: int) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - TAIL_BYTES)
            file.seek(start)
            data = file.read(TAIL_BYTES)
    except OSError:
        return ()
    if start and b"\n" in data:
        data = data.partition(b"\n")[2]
    text = data.decode("utf-8", errors="replace").rstrip("\n")
    return tuple(log_line(line) for line in text.split("\n")[-lines:])

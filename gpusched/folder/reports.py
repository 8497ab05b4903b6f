"""A trial's own file of reports: one sealed line a report, written and read here alone.

A line of ``reports.jsonl`` is the report's frame (``protocol``) with a checksum, appended in a single ``write``
before the frame is sent, so that a report the daemon missed is never lost. ``seq`` counts up over the whole life of the
trial. A line torn by a crash or a full disk is closed with a newline before the next one. Torn, damaged and
foreign lines do not count as reports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from gpusched.folder.files import is_sound, sealed
from gpusched.protocol import BadFrame, Report, encode, report_from

REPORT_LIMIT_BYTES = 32 * 1024
_FIRST_READ_BYTES = 4096


class ReportLog:
    """Appends reports of one incarnation to the file; made by rank 0 alone. ``complain`` is told once why it cannot."""

    def __init__(
        self,
        path: Path,
        incarnation: int,
        known_seq: int = 0,
        complain: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """``known_seq``: of the last report that the daemon has; the disk may have refused or damaged some."""
        self._path = path
        self._incarnation = incarnation
        self._torn = _ends_torn(path)
        self.last_seq = max(last_seq(path), known_seq)
        self._file: int | None = None
        self._complain: Callable[[str], None] | None = complain

    def append(self, report: Report) -> bool:
        """Number the report and write it. False if the file does not have it.

        Raises:
            ValueError: The report is too large; nothing was written.
        """
        report.incarnation, report.seq = self._incarnation, self.last_seq + 1
        data = line_of(report)
        if len(data) > REPORT_LIMIT_BYTES:
            longest = max(report.metrics, key=len, default="")
            raise ValueError(
                f"this report has {len(data)} bytes in {len(report.metrics)} metrics (the longest name: "
                f"{longest[:40]!r}), more than {REPORT_LIMIT_BYTES}: report numbers that tell how "
                f"the trial does, and write the rest to a file of your own"
            )
        self.last_seq = report.seq
        return self._write(data)

    def _write(self, data: bytes) -> bool:
        if self._torn:
            data = b"\n" + data
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            written = os.write(self._file, data)
        except OSError as error:
            self._say(str(error))
            return False
        self._torn = written < len(data)
        if self._torn:
            self._say("the disk is full")
        return not self._torn

    def _say(self, why: str) -> None:
        if self._complain is not None:
            self._complain(f"{self._path}: reports are not kept: {why}")
            self._complain = None


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read() not in (b"", b"\n")
    except OSError:
        return False


def line_of(report: Report) -> bytes:
    """The line that the file has for this report."""
    return sealed(encode(report)[:-1]) + b"\n"


def reports_after(path: Path, last_seq: int) -> list[Report]:
    """The reports in the file that come after ``last_seq``, in order, each number once.

    Reads backwards from the end, as far as it must.
    """
    later: dict[int, Report] = {}
    for found in _ends(path):
        later = {report.seq: report for report in found if report.seq > last_seq}
        if any(report.seq <= last_seq for report in found):
            break
    return [later[seq] for seq in sorted(later)]


def last_seq(path: Path) -> int:
    """The number of the last report in the file; 0 for an empty file."""
    return max((report.seq for report in next(filter(None, _ends(path)), ())), default=0)


def _ends(path: Path) -> Iterator[list[Report]]:
    """The reports in longer and longer ends of the file; the last end is all of it."""
    with suppress(OSError), path.open("rb") as file:
        start, length = file.seek(0, os.SEEK_END), _FIRST_READ_BYTES
        size = start
        while start:
            start, length = max(0, size - length), 8 * length
            file.seek(start)
            data = file.read()
            yield list(_parsed(data.partition(b"\n")[2] if start else data))


def _parsed(data: bytes) -> Iterator[Report]:
    """The report in each line; a damaged or foreign line is passed over."""
    for line in filter(is_sound, data.split(b"\n")):
        with suppress(BadFrame):
            yield report_from(line)

"""Reports: from a rank's frame or a line of ``reports.jsonl`` to a ``Reported`` event.

What comes from a trial is not trusted: types are checked, non-finite numbers become the three strings of the contract,
and what is no number is left out. The hot path (a frame whose metrics are plain finite numbers) copies nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpusched.core.events import Reported
from gpusched.folder.files import is_sound

_FIRST_READ_BYTES = 4096
LARGEST = 2**53
_NON_FINITE = ("nan", "inf", "-inf")


class BadReport(Exception):
    """A report that cannot stand; the message is for the user."""


class Line(NamedTuple):
    """A line of ``reports.jsonl``."""

    seq: int
    step: int
    step_time_s: object
    metrics: Mapping[str, Any]


def make_report(
    at: float,
    trial: int,
    incarnation: int,
    line: tuple[object, object, object, object],
    metric: str,
) -> Reported:
    """``line``: seq, step, step time, metrics as they came. Raises ``BadReport``."""
    seq, step, step_time_s, metrics = line
    if (
        type(seq) is not int
        or type(step) is not int
        or not (0 < seq < LARGEST and 0 <= step < LARGEST)
    ):
        raise BadReport(
            f"a report with number {seq!r} and step {step!r}: both must be whole numbers"
        )
    if type(metrics) is not dict:
        raise BadReport("a report without metrics")
    clean = metrics
    for value in metrics.values():
        if not (type(value) is float or type(value) is int) or not -LARGEST < value < LARGEST:
            clean = _cleaned(metrics)
            break
    if metric not in clean:
        raise BadReport(
            f"a report without a number for {metric!r}, by which the recipe searches"
            + (f" (it has {', '.join(map(repr, metrics))})" if metrics else "")
        )
    value = clean[metric]
    if (
        type(step_time_s) is not float and type(step_time_s) is not int
    ) or not 0 <= step_time_s < LARGEST:
        step_time_s = None
    return Reported(
        at=at,
        trial=trial,
        incarnation=incarnation,
        seq=seq,
        step=step,
        metric=None if type(value) is str else float(value),
        step_time_s=step_time_s,
        metrics=clean,
    )


def _cleaned(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    clean: dict[str, float | str] = {}
    for name, value in metrics.items():
        if value in _NON_FINITE and type(value) is str:
            clean[name] = value
        elif type(value) is int or type(value) is float:
            clean[name] = _finite_or_text(value)
    return clean


def _finite_or_text(value: float) -> float | str:
    try:
        number = float(value)
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    if number != number:
        return "nan"
    if number in (float("inf"), float("-inf")):
        return "inf" if number > 0 else "-inf"
    return number


def lines_after(path: Path, last_seq: int) -> list[Line]:
    """The reports in a trial's own file that come after ``last_seq``, in order, each number once.

    Reads backwards from the end, as far as it must. A torn, damaged or foreign line is nobody's report.
    """
    length = _FIRST_READ_BYTES
    while True:
        data, whole = _end_of(path, length)
        found = list(_parsed(data))
        if whole or (found and min(line.seq for line in found) <= last_seq):
            break
        length *= 8
    later = {line.seq: line for line in found if line.seq > last_seq}
    return [later[seq] for seq in sorted(later)]


def last_seq_in(path: Path) -> int:
    """The number of the last report in a trial's own file; 0 if there is none."""
    seq, length = 0, _FIRST_READ_BYTES
    while not seq:
        data, whole = _end_of(path, length)
        seq = max((line.seq for line in _parsed(data)), default=0)
        if whole:
            break
        length *= 8
    return seq


def _end_of(path: Path, length: int) -> tuple[bytes, bool]:
    """The whole lines in the last ``length`` bytes, and whether that is the whole file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - length)
            file.seek(start)
            data = file.read()
    except OSError:
        return b"", True
    return (data.partition(b"\n")[2] if start else data), start == 0


def _parsed(data: bytes) -> Iterator[Line]:
    for text in data.splitlines():
        if not is_sound(text):
            continue
        try:
            record = json.loads(text)
            seq, step, metrics = record["n"], record["k"], record["m"]
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        if type(seq) is int and type(step) is int and type(metrics) is dict:
            yield Line(seq, step, record.get("s"), metrics)

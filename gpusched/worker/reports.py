"""A trial's own file of reports, and what may stand in one.

A report is one line of ``reports.jsonl`` with a checksum, appended in a single ``write`` before it is sent, so that a
report the daemon missed is never lost. ``seq`` counts up over the whole life of the trial. A line torn by a crash or a
full disk is closed with a newline before the next one, and is nobody's report.
"""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.folder.files import is_sound, sealed
from gpusched.journal import compact
from gpusched.text import nearest
from gpusched.worker.say import say

REPORT_LIMIT_BYTES = 32 * 1024
_TAIL_BYTES = 2 * REPORT_LIMIT_BYTES

Metric = float | int | str
"""A number; ``"nan"``, ``"inf"`` or ``"-inf"`` where it is not finite."""


def clean_metrics(metrics: Mapping[str, object], wanted: str | None) -> dict[str, Metric]:
    """The metrics as plain numbers; tensors and numpy scalars of one element are taken.

    Raises:
        TypeError: A metric is no number.
        ValueError: The metric that the recipe searches by is missing.
    """
    if wanted is not None and wanted not in metrics:
        instead = nearest(wanted, metrics, 0.5) or next(iter(metrics), None)
        has = f"has {', '.join(metrics)}" if metrics else "has no metric"
        fix = f", or write `metric: {instead}` in the recipe" if instead else ""
        raise ValueError(
            f"this report {has} but not {wanted!r}, by which the recipe searches: "
            f"call trial.report({wanted}=...){fix}"
        )
    return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: object) -> Metric:
    if type(value) is float and math.isfinite(value):
        return value
    plain: Any = value
    if not isinstance(value, numbers.Real):
        item = getattr(value, "item", None)
        if callable(item):
            shape = tuple(getattr(value, "shape", ()))
            if math.prod(shape) != 1:
                raise TypeError(
                    f"metric {name!r} has shape {shape}: report one number, e.g. {name}.mean()"
                )
            plain = item()
        if not isinstance(plain, numbers.Real):
            raise TypeError(
                f"metric {name!r} is {_short(value)}, not a number: report a float, an int or a "
                f"tensor of one element"
            )
    if isinstance(plain, numbers.Integral) and abs(int(plain)) < 1 << 63:
        return int(plain)
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf if plain > 0 else -math.inf
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


def shown(step: int, step_time_s: float, metrics: Mapping[str, Metric]) -> str:
    """A report as a line for people, where nobody else takes it."""
    parts = [
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    ]
    return "  ".join([f"step {step}", *parts, f"({step_time_s:.2f} s)"])


def _short(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


class ReportLog:
    """Appends to ``reports.jsonl``; made by rank 0 alone."""

    def __init__(self, path: Path, incarnation: int, known_seq: int = 0) -> None:
        """``known_seq``: of the last report that the daemon has; the disk may have refused to keep some."""
        self._path = path
        self._incarnation = incarnation
        last_seq, self._torn = _last_seq(path)
        self.last_seq = max(last_seq, known_seq)
        self._file: int | None = None
        self._complained = False

    def append(
        self, step: int, step_time_s: float | None, metrics: Mapping[str, Metric]
    ) -> tuple[int, bool]:
        """Write one report; return its number and whether the file has it (if not, stderr says why).

        Raises:
            ValueError: The report is too large; nothing was written.
        """
        seq = self.last_seq + 1
        line = {"i": self._incarnation, "n": seq, "k": step, "s": step_time_s, "m": metrics}
        text = compact.encode(line).encode()
        data = sealed(text) + b"\n"
        if len(data) > REPORT_LIMIT_BYTES:
            largest = max(metrics, key=len, default="")
            raise ValueError(
                f"this report has {len(data)} bytes in {len(metrics)} metrics (the longest name: "
                f"{largest[:40]!r}), more than {REPORT_LIMIT_BYTES}: report numbers that tell how "
                f"the trial does, and write the rest to a file of your own"
            )
        self.last_seq = seq
        return seq, self._write(data)

    def _write(self, data: bytes) -> bool:
        if self._torn:
            data = b"\n" + data
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
            written = os.write(self._file, data)
        except OSError as error:
            self._complain(str(error))
            return False
        self._torn = written < len(data)
        if self._torn:
            self._complain("the disk is full")
        return not self._torn

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            say(f"{self._path}: reports are not kept: {why}")


def _last_seq(path: Path) -> tuple[int, bool]:
    """The number of the last whole report in the file (0 without one), and whether the file ends in a torn line."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read()
            found = _newest(data)
            if found is None and size > len(data):
                file.seek(0)
                found = _newest(file.read())
    except FileNotFoundError:
        return 0, False
    return found or 0, not data.endswith(b"\n") and bool(data)


def _newest(data: bytes) -> int | None:
    """The number of the last report: of the last line that is sound, and one more for each damaged one behind it."""
    damaged = 0
    for line in reversed(data.split(b"\n")):
        if not is_sound(line):
            damaged += 1
            continue
        try:
            seq = json.loads(line)["n"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(seq, int):
            return seq + damaged
    return None

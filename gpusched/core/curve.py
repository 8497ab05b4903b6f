"""A learning curve in 16 bytes a report: a daemon that serves for days remembers every one.

As a list of tuples each report would cost 100 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload


class Curve(Sequence[tuple[int, float]]):
    """(step, metric) of every report, in the order in which they came; the metric is NaN where it was not finite."""

    __slots__ = ("_metrics", "_steps")

    def __init__(self) -> None:
        self._steps = array("q")
        self._metrics = array("d")

    def add(self, step: int, metric: float) -> None:
        self._steps.append(step)
        self._metrics.append(metric)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._steps, self._metrics, strict=True)

    def __reversed__(self) -> Iterator[tuple[int, float]]:
        return zip(reversed(self._steps), reversed(self._metrics), strict=True)

    @overload
    def __getitem__(self, at: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, float]]: ...

    def __getitem__(self, at: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if isinstance(at, slice):
            return list(zip(self._steps[at], self._metrics[at], strict=True))
        return self._steps[at], self._metrics[at]

    def __eq__(self, other: object) -> bool:
        """The same reports to the bit; NaN is equal to itself here."""
        if not isinstance(other, Curve):
            return NotImplemented
        same = self._steps == other._steps
        return same and self._metrics.tobytes() == other._metrics.tobytes()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<curve of {len(self)} reports>"

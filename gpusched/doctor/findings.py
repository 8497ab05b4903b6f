"""Results of a rehearsal: findings with the line to change, what was compared, and the rows that ranks wrote down."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Row = Mapping[str, Any]
Outcome = Literal["same", "not compared", "WRONG"]

SAME = 1e-6
"""Rates, and numbers that were computed from the same parameters in the same way, differ by rounding at most."""
APART = 0.05
"""Difference of parameters, as a share of the way that they went since the last report, that no rounding explains."""
_TYPICAL = 2 / 3
"""Share of the parameters that go no further. The others may be noise: Adam makes whole steps of rounding errors, as of
a bias before a batch norm, whose gradient is 0."""

PARAMETERS, RATE, SAMPLES, METRICS = "parameters", "learning rate", "samples", "metrics"
ASPECTS = (PARAMETERS, RATE, SAMPLES, METRICS)


@dataclass(frozen=True, slots=True)
class Finding:
    """``kind`` for programs, ``text`` for people. ``is_error``: a search would rank a model that trained wrongly."""

    kind: str
    text: str
    is_error: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "error": self.is_error, "text": self.text}


@dataclass(frozen=True, slots=True)
class RehearsedLaunch:
    """One launch: by report, the rows of its ranks. ``error``: how it failed, if it did."""

    atoms: int
    reports: Sequence[Sequence[Row]]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RehearsedTrial:
    """A trial's launches in order, and the remarks of gpusched to its ranks."""

    launches: Sequence[RehearsedLaunch]
    said: Sequence[str] = ()

    @property
    def by_step(self) -> dict[int, Sequence[Row]]:
        return {rows[0]["step"]: rows for launch in self.launches for rows in launch.reports}


@dataclass(slots=True)
class Judgement:
    """All findings, and by launch and aspect what came of comparing, with the reason or what was compared."""

    findings: list[Finding] = field(default_factory=list)
    verdicts: dict[tuple[str, str], tuple[Outcome, str]] = field(default_factory=dict)
    #: Metrics that differ between two runs of the same parameters.
    unsteady: set[str] = field(default_factory=set)

    def wrong(self, when: str, aspect: str, text: str, kind: str = "") -> None:
        """Add a mistake, unless one of this launch and aspect is there: it follows from that."""
        if self.outcome(when, aspect) != "WRONG":
            self.findings.append(Finding(kind or aspect, f"{when} {text}"))
            self.verdicts[when, aspect] = ("WRONG", "")

    def same(self, when: str, aspect: str, what: str = "") -> None:
        if self.outcome(when, aspect) != "WRONG":
            self.verdicts[when, aspect] = ("same", what)

    def skip(self, when: str, aspect: str, why: str) -> None:
        """Say why an aspect cannot be compared, unless it was."""
        self.verdicts.setdefault((when, aspect), ("not compared", why))

    def outcome(self, when: str, aspect: str) -> Outcome | None:
        return self.verdicts.get((when, aspect), (None, ""))[0]

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_error]


# ---------------------------------------------------------------- rows


def differs(rows: Sequence[Row], expected: Mapping[int, Sequence[Row]]) -> bool:
    then = expected.get(rows[0]["step"])
    if then is None:
        return False
    row, other = rows[0], then[0]
    is_apart = strayed(row["end"], other) > APART
    return is_apart or row["inputs"][:1] != other["inputs"][:1]


def unsteady(rows: Sequence[Row], expected: Mapping[int, Sequence[Row]]) -> set[str]:
    """Return the metrics that differ although parameters and inputs do not: times, speeds, or drawn without a seed."""
    then = expected.get(rows[0]["step"])
    if then is None or differs(rows, expected):
        return set()
    known = then[0]["metrics"]
    return {
        name
        for name, value in rows[0]["metrics"].items()
        if not math.isclose(value, known.get(name, value), rel_tol=1e-3, abs_tol=1e-6)
    }


def is_time(name: str) -> bool:
    """Tell whether a metric differs by nature: times, speeds, and the rate itself."""
    words = ("time", "second", "per_sec", "runtime", "speed", "learning_rate")
    return (
        name.endswith("per_s")
        or any(word in name for word in words)
        or "lr" in re.split(r"[^a-z]+", name.lower())
    )


def draws(rows: Sequence[Row]) -> list[Counter[int] | None]:
    """Return what the ranks have drawn together of each data set; None where there was too much to write down."""
    found: list[Counter[int] | None] = []
    for place in range(max(len(row["drawn"]) for row in rows)):
        drawn = [row["drawn"][place] for row in rows if place < len(row["drawn"])]
        is_whole = all(len(one["samples"]) == one["count"] for one in drawn)
        samples = (sample for one in drawn for sample in one["samples"])
        found.append(Counter(samples) if is_whole else None)
    return found


def begins_elsewhere(row: Row, then: Row) -> bool:
    """Tell whether a launch begins with other parameters than the undisturbed trial had then."""
    mine, theirs = row["start"] or (), then["start"] or ()
    return len(mine) == len(theirs) and far(mine, theirs) > APART * far(theirs, then["end"])


def strayed(end: Sequence[float], then: Row) -> float:
    """Return how far parameters end from the undisturbed ones, as a share of the way that those went; of most of them.

    Rounding differs between kernels that a compiler or cuDNN has chosen, and no state is lost then.
    """
    rows = zip(end, then["start"] or (), then["end"], strict=False)
    moved = [(abs(mine - theirs), abs(theirs - start)) for mine, start, theirs in rows]
    moved = [each for each in moved if any(each)]
    if not moved or len(end) != len(then["end"]):
        return 0.0
    typical = int(_TYPICAL * len(moved))
    apart, way = (sorted(each)[typical] for each in zip(*moved, strict=True))
    return apart / way if way else float(apart > SAME)


def far(one: Sequence[float], other: Sequence[float]) -> float:
    if not one or not other or len(one) != len(other):
        return math.inf
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-12)


def between(low: float, high: float) -> str:
    return f"{low:.4g}" if equal(low, high) else f"{low:.4g} to {high:.4g}"


def not_restored(row: Row, untrained: Any) -> str:
    begins = "with other parameters than it was left with"
    if untrained and far(row["start"], untrained) < 1e-9:
        begins = "untrained again"
    return (
        f"the model begins {begins}: give it to trial.track(model=model, opt=opt) when all is built, and change no "
        f"parameter after that"
    )


def keeps_global_batch(row: Row, then: Row) -> bool | None:
    """Tell whether the ranks together train on as much a step as one did; None where that is not known."""
    # By the values of a batch, which may be the second dimension of its tensor.
    mine, theirs = row["values"], then["values"]
    ranks = row["ranks"] / then["ranks"]
    if not mine or not theirs or ranks == 1:
        return None
    if abs(mine * ranks - theirs) <= 0.2 * theirs:
        return True
    return False if abs(mine - theirs) <= 0.2 * theirs else None

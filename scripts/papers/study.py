"""Parts that the studies share: from setups to points (mean and 95% interval over seeds), and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.sim.setup import Setup
from gpusched.sim.study import Mean, Result

#: What HyperSched's section 6 gives every policy.
STEPS = {"r": 5, "R": 500, "eta": 4.0}
BOUNDS = {"metric_min": 0.0, "metric_max": 1.0}

Measure = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True)
class Study:
    """``setups(quick)`` says what to run; ``work`` does one run (None: a plain one) and returns what ``draw`` takes.

    ``draw(results, folder)`` writes ``folder/name.json`` and returns lines for people.
    """

    name: str
    setups: Callable[[bool], list[Setup]]
    draw: Callable[[Sequence[Any], Path], list[str]]
    work: Callable[[Setup], Any] | None = None


def best(result: Result) -> float:
    """The score of the best model at the deadline; 0, the worst, if there is none."""
    return 0.0 if result.best is None else result.best


def points(
    results: Sequence[Result], measures: Mapping[str, Measure], keys: Sequence[str]
) -> list[dict[str, Any]]:
    """One mapping for each combination of ``keys``: the keys, and of each measure the mean and its half width."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(getattr(result, key) for key in keys), []).append(result)
    found = []
    for values, group in groups.items():
        point: dict[str, Any] = dict(zip(keys, values, strict=True))
        point["seeds"] = len(group)
        for name, measure in measures.items():
            known = [value for value in map(measure, group) if value is not None]
            mean = Mean.of(known)
            point[name] = _rounded(mean.mean)
            point[f"{name}_half_width"] = _rounded(mean.half_width)
            if len(known) < len(group):
                point[f"{name}_missing"] = len(group) - len(known)
        found.append(point)
    return found


def paired(
    results: Sequence[Result], one: str, other: str, key: str = "label", value: Measure = best
) -> Mean:
    """Return by how much runs whose ``key`` is ``one`` are ahead of those of ``other``, run by run."""

    def runs(name: str) -> dict[Any, float]:
        found = {}
        for result in results:
            measured = value(result)
            if getattr(result, key) == name and measured is not None:
                situation = (result.atoms, result.deadline, result.scaling, result.delay)
                found[situation, result.seed] = measured
        return found

    ones, others = runs(one), runs(other)
    return Mean.of(ones[run] - others[run] for run in ones.keys() & others.keys())


def _rounded(value: float) -> float | None:
    return None if value != value else float(f"{value:.5g}")


def write(folder: Path, name: str, title: str, found: Sequence[Mapping[str, Any]]) -> None:
    """One point a line, so that a change of a figure can be read in a diff."""
    lines = ",\n".join(f"  {json.dumps(point)}" for point in found)
    text = (
        f'{{"figure": {json.dumps(name)}, "title": {json.dumps(title)}, "points": [\n{lines}\n]}}\n'
    )
    (folder / f"{name}.json").write_text(text)


def ratio(found: Sequence[Mapping[str, Any]], y: str, one: str, other: str) -> float:
    """Mean of ``one`` over mean of ``other``, each over all points with that label."""

    def mean(label: str) -> float:
        values = [p[y] for p in found if p["label"] == label and p[y] is not None]
        return sum(values) / max(1, len(values))

    return mean(one) / (mean(other) or float("nan"))

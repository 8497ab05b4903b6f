"""Plots of simulated runs, on a page like a report's.

If one thing was varied (atoms, deadline, scaling or delay), the best metric over it, a line a policy; else the best
metric over time. Bands and bars are 95% intervals over seeds.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from gpusched.errors import InputError
from gpusched.report import page
from gpusched.report.figures import SIZES, Figure, figure
from gpusched.sim.single import Result
from gpusched.sim.study import Mean, Row, summarise

#: Possible x axes: (field of a row, name of the axis).
DIMENSIONS = (
    ("atoms", "atoms"),
    ("deadline_s", "deadline (s)"),
    ("delay_s", "launch and resize delay (s)"),
    ("scaling", "scaling"),
)
#: Okabe and Ito's colours, the most striking first.
COLOURS = tuple(reversed(SIZES[:-1]))
#: Instants at which a curve over time is known.
INSTANTS = 200


def check(file: Path) -> None:
    """Raise InputError if a plot cannot be written there: before hours of simulation, not after."""
    if file.suffix.lower() != ".html":
        raise InputError(f"--plot {file}: a plot is a page; the file's name must end in .html")
    if not file.absolute().parent.is_dir():
        raise InputError(f"--plot {file}: the folder {file.absolute().parent} does not exist")


def plot(results: Sequence[Result], file: Path, metric: str) -> None:
    """Draw the runs into a page. Raises InputError if the file cannot be written."""
    rows = summarise(results)
    varied = [
        (name, label) for name, label in DIMENSIONS if len({getattr(r, name) for r in rows}) > 1
    ]
    if varied:
        (name, label), *_ = varied
        axis: Figure = {"type": "category" if name == "scaling" else "linear"}
        if name == "atoms":
            places = sorted({row.atoms for row in rows})
            axis = {"type": "log", "tickvals": places, "ticktext": [str(n) for n in places]}
        traces, y = list(_over_dimension(rows, name)), f"best {metric} at the deadline"
    else:
        axis, label = {}, "time (s)"
        traces, y = list(_over_time(results)), f"best {metric}"
    drawn = figure(traces, label, y, xaxis=axis, showlegend=True)
    words = "Bands and bars are 95% intervals over seeds."
    text = page.page("Simulated runs", [], [(_title(results, varied), drawn, words)], [])
    try:
        page.write(file, text)
    except OSError as error:
        raise InputError(f"--plot {file}: cannot be written ({error.strerror})") from None


def _title(results: Sequence[Result], varied: Sequence[tuple[str, str]]) -> str:
    one, names = results[0], {name for name, _ in varied}
    parts = [one.workload.rpartition("/")[2]]
    if "atoms" not in names:
        parts.append(f"{one.atoms} atoms")
    if "deadline_s" not in names:
        parts.append(f"deadline {one.deadline:g} s")
    if "scaling" not in names:
        parts.append(f"scaling {one.scaling}")
    parts.append(f"{len({result.seed for result in results})} seeds")
    return ", ".join(parts)


def _over_dimension(rows: Sequence[Row], name: str) -> Iterator[Figure]:
    """Yield a line a policy; rows that differ in more than this are pooled at their x."""
    places = sorted({getattr(row, name) for row in rows}, key=lambda x: (isinstance(x, str), x))
    for place, policy in enumerate(dict.fromkeys(row.name for row in rows)):
        trace: Figure = {"type": "scatter", "mode": "lines+markers", "name": escape(policy)}
        trace |= {"x": [], "y": [], "line": {"color": COLOURS[place % len(COLOURS)]}}
        bars = []
        for x in places:
            here = [row.best for row in rows if row.name == policy and getattr(row, name) == x]
            known = [mean for mean in here if mean.count]
            if known:
                trace["x"].append(x)
                trace["y"].append(sum(mean.mean for mean in known) / len(known))
                bars.append(_half_width(known[0]) if len(known) == 1 else 0.0)
        yield {**trace, "error_y": {"type": "data", "array": bars}}


def _over_time(results: Sequence[Result]) -> Iterator[Figure]:
    """Yield a band and a line a policy, from when every seed has a model: before, a mean would be of other seeds."""
    times = [results[0].deadline * n / INSTANTS for n in range(INSTANTS + 1)]
    names = dict.fromkeys(_name(result) for result in results)
    for place, name in enumerate(names):
        runs = [result for result in results if _name(result) == name and result.history]
        means = [(at, Mean.of(_values_at(runs, at))) for at in times]
        full = [(at, mean) for at, mean in means if mean.count == len(runs) and mean.count]
        xs, color = [at for at, _ in full], COLOURS[place % len(COLOURS)]
        low = [mean.mean - _half_width(mean) for _, mean in full]
        high = [mean.mean + _half_width(mean) for _, mean in full]
        band = {"x": [*xs, *reversed(xs)], "y": [*low, *reversed(high)], "fill": "toself"}
        quiet = {"mode": "none", "opacity": 0.25, "hoverinfo": "skip", "showlegend": False}
        yield {"type": "scatter", **band, **quiet, "fillcolor": color}
        ys = [mean.mean for _, mean in full]
        yield {"type": "scatter", "x": xs, "y": ys, "name": escape(name), "line": {"color": color}}


def _name(result: Result) -> str:
    return f"{result.policy} {result.label}".rstrip()


def _half_width(mean: Mean) -> float:
    """Return half of the interval; 0 where one seed has none."""
    return mean.half_width if mean.count > 1 else 0.0


def _values_at(runs: Sequence[Result], at: float) -> list[float]:
    """Return the best metric of each run at a time, of those that have one by then."""
    found = []
    for run in runs:
        place = bisect.bisect_right(run.history, (at, float("inf")))
        if place:
            found.append(run.history[place - 1][1])
    return found

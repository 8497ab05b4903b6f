"""Plots of simulated runs. matplotlib is an optional extra and imported only here.

If one thing was varied (atoms, deadline, scaling or delay), the best metric over it, a line a policy; else the best
metric over time. Bands and bars are 95% intervals over seeds.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.errors import InputError
from gpusched.sim.single import Result
from gpusched.sim.study import Mean, Row, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
#: Possible x axes: (field of a row, name of the axis).
DIMENSIONS = (
    ("atoms", "atoms"),
    ("deadline_s", "deadline (s)"),
    ("delay_s", "launch and resize delay (s)"),
    ("scaling", "scaling"),
)


def check(file: Path) -> None:
    """Raises InputError if a plot cannot be written there: before hours of simulation, not after."""
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {file}: the file's name must end in {', '.join(SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise InputError(f"--plot {file}: the folder {file.absolute().parent} does not exist")
    pyplot()


def pyplot() -> Any:
    """matplotlib.pyplot without a display. Raises InputError if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "plots need matplotlib, which is not installed; install gpusched[plots] (pip install 'gpusched[plots]')"
        ) from None
    matplotlib.use("agg")
    import matplotlib.pyplot as found

    return found


def plot(results: Sequence[Result], file: Path, metric: str) -> None:
    """Draw them into ``file``. Raises InputError if it cannot be written."""
    rows = summarise(results)
    varied = [
        (name, label) for name, label in DIMENSIONS if len({getattr(r, name) for r in rows}) > 1
    ]
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.0, 4.3), layout="constrained")
    if varied:
        _over_dimension(axes, rows, *varied[0])
    else:
        _over_time(axes, results)
    axes.set_ylabel(f"best {metric} at the deadline" if varied else f"best {metric}")
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(_title(results, varied), fontsize="medium")
    try:
        figure.savefig(file, dpi=130)
    except OSError as error:
        raise InputError(f"--plot {file}: cannot be written ({error.strerror})") from None
    finally:
        plt.close(figure)


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


def _over_dimension(axes: Axes, rows: Sequence[Row], name: str, label: str) -> None:
    """Rows that differ in more than this are pooled at their x."""
    places = sorted({getattr(row, name) for row in rows}, key=lambda x: (isinstance(x, str), x))
    for policy in dict.fromkeys(row.name for row in rows):
        xs, means, bars = [], [], []
        for x in places:
            here = [row.best for row in rows if row.name == policy and getattr(row, name) == x]
            known = [mean for mean in here if mean.count]
            if known:
                xs.append(str(x) if isinstance(x, str) else x)
                means.append(sum(mean.mean for mean in known) / len(known))
                bars.append(known[0].half_width if len(known) == 1 else 0.0)
        axes.errorbar(
            xs, means, [bar if bar == bar else 0.0 for bar in bars], label=policy, capsize=3
        )
    axes.set_xlabel(label)
    if name == "atoms" and len(places) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(x) for x in places])


def _over_time(axes: Axes, results: Sequence[Result], points: int = 200) -> None:
    deadline_s = results[0].deadline
    times = [deadline_s * n / points for n in range(points + 1)]
    for policy in dict.fromkeys(f"{r.policy} {r.label}".rstrip() for r in results):
        runs = [r for r in results if f"{r.policy} {r.label}".rstrip() == policy and r.history]
        bands = [(at, Mean.of(_values_at(runs, at))) for at in times]
        # A mean over the seeds that already have a model would be of another set of seeds.
        full = [(at, mean) for at, mean in bands if mean.count == len(runs) and mean.count]
        xs, ys = [at for at, _ in full], [mean.mean for _, mean in full]
        widths = [mean.half_width if mean.count > 1 else 0.0 for _, mean in full]
        (line,) = axes.plot(xs, ys, label=policy)
        low = [y - width for y, width in zip(ys, widths, strict=True)]
        high = [y + width for y, width in zip(ys, widths, strict=True)]
        axes.fill_between(xs, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set_xlabel("time (s)")


def _values_at(runs: Sequence[Result], at: float) -> list[float]:
    """The best metric of each run at a time, of those that have one by then."""
    found = []
    for run in runs:
        place = bisect.bisect_right(run.history, (at, float("inf")))
        if place:
            found.append(run.history[place - 1][1])
    return found

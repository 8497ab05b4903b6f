"""The plots of a report as plotly draws them: plain dicts of data and layout, made from a timeline. Pure.

Colours are few and safe for the colour-blind (Okabe and Ito's for sizes; viridis for metrics). Times are seconds since
the search began.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gpusched.dashboard.marks import middle
from gpusched.dashboard.model import thinned
from gpusched.journal.timeline import Timeline, TrialTimeline
from gpusched.report.measures import Importance, ranked
from gpusched.text import count, flat, show_hparams, show_metric

Figure = dict[str, Any]
Point = tuple[float, float | None]

#: Trials with a line of their own; the others are one quiet line with gaps. Points of a line.
LINES, POINTS = 24, 120
OTHERS = "rgba(128,128,128,0.35)"
#: By number of atoms: Okabe and Ito's colours, the least striking first.
SIZES = ("#999999", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#0072b2", "#f0e442")


def colour(trial: int) -> str:
    """Choose one of many colours that differ from their neighbours, readable on light and dark."""
    return f"hsl({trial * 137.508 % 360:.0f},60%,48%)"


def figure(data: Sequence[Figure], x: str, y: str, **layout: Any) -> Figure:
    """Put traces and axes together. ``layout``: further keys of plotly's layout, ``height`` among them."""
    axes = {"xaxis": {"title": {"text": escape(x)}}, "yaxis": {"title": {"text": escape(y)}}}
    for axis in ("xaxis", "yaxis"):
        axes[axis] |= layout.pop(axis, {})
    return {"data": list(data), "layout": {"showlegend": False, **axes, **layout}}


def line(points: Sequence[Point], *, most: int = POINTS, **trace: Any) -> Figure:
    """Return a line of at most so many points; None breaks the line."""
    kept = thinned(points, most)
    xy = {"x": [x for x, _ in kept], "y": [y for _, y in kept]}
    return {"type": "scatter", "mode": "lines", **xy, **trace}


def _bars(x: Sequence[object], y: Sequence[object], **trace: Any) -> Figure:
    return {"type": "bar", "x": x, "y": y, **trace}


def _words(trial: TrialTimeline) -> str:
    return escape(f"trial {trial.id}: {show_hparams(trial.hparams)}"[:160])


def _y_axis(told: Timeline) -> Figure:
    """Span most of the points, so that a curve that runs away hides nothing."""
    values = [y for trial in told.trials.values() for _, _, y in trial.curve if y is not None]
    if not values:
        return {}
    low, high = middle(values)
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return {"range": [low - margin, high + margin]}


# ---------------------------------------------------------------- curves


def curves(told: Timeline, sign: float, metric: str, *, over_time: bool) -> Figure:
    """Draw every trial's metric over steps or over time."""

    def points(trial: TrialTimeline) -> list[Point]:
        return [(at if over_time else step, value) for at, step, value in trial.curve]

    drawn = [trial for trial in ranked(told, sign) if trial.best(sign) is not None]
    rest: list[tuple[Point, int]] = []
    for trial in drawn[LINES:]:
        rest += [(point, trial.id) for point in thinned(points(trial), POINTS // 4)]
        rest.append(((0.0, None), trial.id))
    others = line(
        [point for point, _ in rest],
        most=len(rest),
        customdata=[trial for _, trial in rest],
        hovertemplate="trial %{customdata}: %{y}<extra></extra>",
        line={"color": OTHERS, "width": 1},
    )
    traces = [others]
    for place, trial in reversed(list(enumerate(drawn[:LINES]))):
        width = 3.5 if place == 0 else 1.5
        shown: Figure = {"line": {"color": colour(trial.id), "width": width}, "name": _words(trial)}
        traces.append(
            line(points(trial), **shown, hovertemplate="%{y}<br>%{fullData.name}<extra></extra>")
        )
    x = "seconds since the search began" if over_time else "step"
    return figure(traces, x, metric, yaxis=_y_axis(told))


def progress(searches: Mapping[str, Sequence[tuple[float, float]]], metric: str) -> Figure:
    """Draw the best so far over time, a line for each search."""
    style = {"shape": "hv", "width": 2.5}
    traces = [line(points, name=escape(name), line=style) for name, points in searches.items()]
    return figure(
        traces, "seconds since the search began", metric, height=280, showlegend=len(traces) > 1
    )


# ---------------------------------------------------------------- devices


def by_size(told: Timeline, metric: str) -> Figure:
    """Draw HyperSched's figure 4: metric over time, coloured by atoms, and the line where exploration ended."""
    pieces: dict[int, list[Point]] = {0: []}
    for trial in told.trials.values():
        last: Point | None = None
        for incarnation in trial.incarnations:
            if not incarnation.steps:
                continue
            steps = [(step.at, step.metric) for step in incarnation.steps]
            if last is not None:
                pieces[0] += [last, steps[0], (steps[0][0], None)]
            piece = pieces.setdefault(len(incarnation.devices), [])
            piece += [*thinned(steps, POINTS), (steps[-1][0], None)]
            last = steps[-1]
    traces = []
    for place, (size, points) in enumerate(sorted(pieces.items())):
        style: Figure = {"color": SIZES[(place - 1) % len(SIZES)], "width": 1 + min(4, size / 2)}
        if size == 0:
            style = {"color": OTHERS, "width": 1, "dash": "dot"}
        name = count(size, "atom") if size else "paused, or launched"
        traces.append(line(points, most=len(points), name=name, line=style))
    ended = max((trial.incarnations[0].launched_at for trial in told.trials.values()), default=0.0)
    mark = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": ended, "x1": ended}
    words = {"x": ended, "y": 1, "yref": "paper", "text": "the last new trial", "showarrow": False}
    return figure(
        traces,
        "seconds since the search began",
        metric,
        showlegend=True,
        yaxis=_y_axis(told),
        shapes=[{**mark, "line": {"dash": "dash", "width": 1.5, "color": "#888"}}],
        annotations=[{**words, "xanchor": "left", "yanchor": "bottom"}],
    )


def allocations(told: Timeline) -> Figure:
    """Draw a box for each allocation: as long as it lasted, as high as it had devices; the area is device-seconds held.

    A box stands as low as there is room, in pieces where no room is as high as the box.
    """
    heights: dict[tuple[float, float, int], int] = {}
    for span in told.spans:
        if span.state == "held" and span.trial is not None:
            box = (span.begin, span.end, span.trial)
            heights[box] = heights.get(box, 0) + 1
    free_at: list[float] = []
    trace = _bars([], [], width=[], base=[], text=[])
    paints: list[str] = []
    for (begin, end, trial), height in sorted(heights.items()):
        free_at += [0.0] * max(0, height - sum(at <= begin for at in free_at))
        for low, high in _room(free_at, begin, height):
            free_at[low:high] = [end] * (high - low)
            trace["x"].append((begin + end) / 2)
            trace["width"].append(end - begin)
            trace["y"].append(high - low)
            trace["base"].append(low)
            trace["text"].append(str(trial))
            paints.append(colour(trial))
    trace |= {
        "marker": {"color": paints, "line": {"width": 0.5, "color": "rgba(128,128,128,.6)"}},
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertemplate": "trial %{text} on %{y}, %{width:.1f} s<extra></extra>",
    }
    area = sum(y * width for y, width in zip(trace["y"], trace["width"], strict=True))
    label = f"seconds since the search began; {area:.0f} device-seconds held"
    return figure([trace], label, "devices", bargap=0, height=320)


def _room(free_at: Sequence[float], begin: float, height: int) -> list[tuple[int, int]]:
    """Return the lowest run of rows that are free at ``begin`` and high enough, or else the lowest runs that are."""
    runs: list[tuple[int, int]] = []
    for row, at in enumerate(free_at):
        if at <= begin:
            low = runs.pop()[0] if runs and runs[-1][1] == row else row
            runs.append((low, row + 1))
    for low, high in runs:
        if high - low >= height:
            return [(low, low + height)]
    found = []
    for low, high in runs:
        if height > 0:
            found.append((low, min(high, low + height)))
            height -= min(high - low, height)
    return found


def devices(told: Timeline) -> Figure:
    """Draw what each device was doing: held by a trial, draining (pale), in quarantine (grey)."""
    traces = []
    for state, opacity in (("held", 1.0), ("draining", 0.4), ("quarantined", 0.8)):
        spans = [span for span in told.spans if span.state == state and span.device in told.devices]
        paints = ["#777" if span.trial is None else colour(span.trial) for span in spans]
        said = {"held": "trial {0.trial}", "draining": "trial {0.trial} has left"}
        words = said.get(state, "quarantined: {0.why}")
        bars = _bars(
            [span.end - span.begin for span in spans],
            [escape(span.device) for span in spans],
            orientation="h",
            name=state,
            base=[span.begin for span in spans],
            text=[escape(words.format(span)) for span in spans],
            textposition="none",
            marker={"color": paints, "opacity": opacity},
            hovertemplate="%{y}: %{text}, %{x:.1f} s<extra></extra>",
        )
        traces.append(bars)
    rows = [escape(device) for device in told.devices]
    axis = {"categoryarray": rows, "autorange": "reversed", "type": "category"}
    height = 120 + 26 * len(rows)
    return figure(
        traces, "seconds since the search began", "", yaxis=axis, height=height, barmode="overlay"
    )


# ---------------------------------------------------------------- rungs, hyperparameters, speed


def rungs(found: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Draw how many trials each rung recorded, and how many wait there; the cut-offs are in the labels."""
    names = [f"step {rung['milestone']}" for rung in found]
    waiting = [rung["waiting"] for rung in found]
    gone_on = [rung["count"] - rung["waiting"] for rung in found]
    words = [f"kept from {escape(metric)} {show_metric(rung['cutoff'])}" for rung in found]
    there: Figure = {"text": words, "textposition": "outside", "marker": {"color": "#56b4e9"}}
    traces = [
        _bars(names, gone_on, name="went on", marker={"color": "#009e73"}),
        _bars(names, waiting, name="paused there", **there),
    ]
    return figure(traces, "rung", "trials", barmode="stack", showlegend=True, height=300)


def parallel(told: Timeline, sign: float, metric: str) -> Figure:
    """Draw each trial as a line through its hyperparameters, in logarithms where they span orders of magnitude."""
    bests = [(dict(flat(t.hparams)), t.best(sign)) for t in told.trials.values()]
    known = [(hparams, best) for hparams, best in bests if best is not None]
    names = list(dict.fromkeys(name for hparams, _ in known for name in hparams))
    dimensions = [
        dimension
        for name in names
        if (dimension := _dimension(name, [hparams.get(name) for hparams, _ in known]))
    ]
    scores = [best for _, best in known]
    low, high = middle(scores) if scores else (0.0, 1.0)
    dimensions.append({"label": escape(metric), "values": scores, "range": [low, high]})
    shade = {"color": scores, "colorscale": "Viridis", "cmin": low, "cmax": high}
    shade |= {"showscale": True, "reversescale": sign < 0}
    trace = {"type": "parcoords", "dimensions": dimensions, "line": shade}
    return figure([trace], "", "", height=380, margin={"l": 70, "r": 20, "t": 70, "b": 30})


def _dimension(name: str, values: Sequence[object]) -> Figure | None:
    """Return the axis of a hyperparameter; None where it is the same in all trials."""
    if len({json.dumps(value, sort_keys=True, default=str) for value in values}) < 2:
        return None
    numbers = [v for v in values if type(v) in (int, float) and math.isfinite(v)]  # type: ignore[arg-type]
    if len(numbers) < len(values):
        texts = [v if isinstance(v, str) else json.dumps(v, default=str) for v in values]
        choices = list(dict.fromkeys(texts))
        ticks = list(range(len(choices)))
        axis: Figure = {"values": [choices.index(text) for text in texts]}
        axis |= {"tickvals": ticks, "ticktext": [escape(choice[:24]) for choice in choices]}
    elif min(numbers) > 0 and max(numbers) / min(numbers) >= 100:  # type: ignore[type-var, operator]
        powers = [math.log10(number) for number in numbers]  # type: ignore[arg-type]
        ticks = list(range(math.floor(min(powers)), math.ceil(max(powers)) + 1))
        axis = {"values": powers, "tickvals": ticks}
        axis["ticktext"] = [f"{10.0**tick:g}" for tick in ticks]
    else:
        axis = {"values": numbers}
    return {"label": escape(name.rpartition(".")[2][:24]), **axis}


def importance(found: Sequence[Importance]) -> Figure:
    """Draw how strongly the rank of the best metric follows each hyperparameter."""
    shown = list(reversed(found[:20]))
    words = {1: "larger is better", -1: "smaller is better", 0: "a choice"}
    trace = _bars(
        [one.strength for one in shown],
        [escape(one.name) for one in shown],
        orientation="h",
        text=[words[one.direction] for one in shown],
        marker={"color": "#0072b2"},
    )
    axis = {"range": [0, 1]}
    return figure([trace], "strength", "", xaxis=axis, height=120 + 28 * len(shown))


def speed(measured: Mapping[int, float], assumed: Mapping[int, float]) -> Figure:
    """Draw the speed-up by size: measured in this search, and as the scheduler had it at its end."""
    sizes = sorted({*measured, *assumed})
    traces = [
        line(sorted(found.items()), mode="lines+markers", name=name, line=style)
        for name, found, style in (
            ("measured", measured, {"color": "#0072b2", "width": 3}),
            ("assumed", assumed, {"color": "#d55e00", "dash": "dash"}),
            ("linear", {size: float(size) for size in sizes}, {"color": OTHERS, "dash": "dot"}),
        )
        if found
    ]
    return figure(traces, "atoms", "times faster than one", showlegend=True, height=320)

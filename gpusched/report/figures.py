"""The plots of a report, made with plotly from a timeline. Pure.

Colours are few and safe for the colour-blind (Okabe and Ito's for sizes; viridis for metrics). Times are seconds since
the search began.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from gpusched.dashboard.marks import middle
from gpusched.dashboard.model import thinned
from gpusched.journal.timeline import Timeline, TrialTimeline
from gpusched.text import flat, show_hparams

Point = tuple[float, float | None]

#: The best trials, whose lines have colours; the others' are quiet. Points of a line.
LINES, POINTS = 24, 120
#: Plots of hyperparameters side by side.
ABREAST = 3
OTHERS = "rgba(128,128,128,0.35)"
SECONDS = "seconds since the search began"


def colour(trial: int) -> str:
    """Choose one of many colours that differ from their neighbours, readable on light and dark."""
    return f"hsl({trial * 137.508 % 360:.0f},60%,48%)"


def _figure(traces: Iterable[Any], x: str, y: str, **layout: Any) -> go.Figure:
    usual = {"height": 400, "showlegend": False, "template": "plotly_white", "hovermode": "closest"}
    found = go.Figure(list(traces))
    found.update_layout(**{**usual, "margin": {"l": 70, "r": 20, "t": 40, "b": 45}, **layout})
    found.update_xaxes(title_text=escape(x))
    found.update_yaxes(title_text=escape(y))
    return found


def _line(points: Iterable[Point], **trace: Any) -> go.Scatter:
    """Return a line, of a step that was trained twice with the second value. None breaks it; one point is a dot."""
    drawn = thinned([*dict(points).items()], POINTS)
    mode = "lines" if sum(y is not None for _, y in drawn) > 1 else "markers"
    return go.Scatter(x=[x for x, _ in drawn], y=[y for _, y in drawn], mode=mode, **trace)


def _span(values: Sequence[float]) -> list[float]:
    """Return the ends of an axis on which these values can be seen, but for outliers."""
    low, high = middle(values)
    margin = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return [low - margin, high + margin]


def _words(trial: TrialTimeline) -> str:
    return escape(f"trial {trial.id}: {show_hparams(trial.hparams)}"[:160])


def ranked(told: Timeline, sign: float) -> list[TrialTimeline]:
    """Sort the trials, the best first; trials without a metric come last."""

    def place(trial: TrialTimeline) -> tuple[bool, float]:
        best = trial.best(sign)
        return best is None, -(best or 0.0) * sign

    return sorted(told.trials.values(), key=place)


# ---------------------------------------------------------------- curves


def curves(told: Timeline, sign: float, metric: str) -> go.Figure:
    """Draw every trial's metric over steps; a button makes the axis logarithmic.

    The best ``LINES`` trials have a line of their own. The axis spans most of their points but those of the worst
    quarter, so that a curve that runs away hides nothing.
    """
    drawn = [trial for trial in ranked(told, sign) if trial.best(sign) is not None]
    traces = []
    for place, trial in reversed(list(enumerate(drawn))):
        points = ((step, value) for _, step, value in trial.curve)
        named = place < LINES
        style = {"color": colour(trial.id) if named else OTHERS, "width": 3.5 if place == 0 else 1}
        hover = "%{y}<br>%{fullData.name}<extra></extra>"
        traces.append(_line(points, line=style, name=_words(trial), hovertemplate=hover))
    found = _figure(traces, "step", metric)
    values = [y for trial in drawn for _, _, y in trial.curve if y is not None]
    if not values:
        return found
    good = drawn[: min(LINES, len(drawn) - len(drawn) // 4)]
    span = _span([y for trial in good for _, _, y in trial.curve if y is not None])
    found.update_yaxes(range=span)
    if min(values) > 0:
        plain: dict[str, Any] = {"yaxis.type": "linear", "yaxis.range": span}
        log: dict[str, Any] = {"yaxis.type": "log", "yaxis.autorange": True}
        buttons = [
            {"label": label, "method": "relayout", "args": [layout]}
            for label, layout in (("linear", plain), ("logarithmic", log))
        ]
        corner = {"x": 0.0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"}
        menu = {"type": "buttons", "direction": "right", "buttons": buttons, **corner}
        found.update_layout(updatemenus=[menu])
    return found


def other_metrics(told: Timeline, sign: float, metric: str) -> dict[str, go.Figure]:
    """Draw each further number that the best trials reported, over steps; at most six, in order of appearance."""
    names: dict[str, dict[int, list[Point]]] = {}
    for trial in ranked(told, sign)[:LINES]:
        for _, step in trial.steps():
            for name, value in step.report.metrics.items():
                if name != metric and not isinstance(value, str):  # a text: not finite
                    points = names.setdefault(name, {}).setdefault(trial.id, [])
                    points.append((step.report.step, float(value)))
    drawn = {}
    for name, found in list(names.items())[:6]:
        lines = [
            _line(points, name=f"trial {trial}", line={"color": colour(trial)})
            for trial, points in found.items()
        ]
        drawn[name] = _figure(lines, "step", name, height=300)
    return drawn


def progress(told: Timeline, sign: float, metric: str) -> go.Figure | None:
    """Draw the best report so far over time; None before the first. What was soon left far behind may lie outside."""
    curves = (trial.curve for trial in told.trials.values())
    reports = sorted((at, y) for curve in curves for at, _, y in curve if y is not None)
    better: Callable[[float, float], float] = max if sign > 0 else min
    best = list(accumulate((y for _, y in reports), better))
    if not best:
        return None
    steps = zip(reports, best, [None, *best], strict=False)
    corners: list[Point] = [(at, y) for (at, _), y, before in steps if y != before]
    stairs = [*corners, (told.until, best[-1])]
    found = _figure(
        [_line(stairs, line={"shape": "hv", "width": 2.5})], SECONDS, metric, height=280
    )
    found.update_yaxes(range=_span(best))
    return found


# ---------------------------------------------------------------- hyperparameters


def scatter(
    told: Timeline, sign: float, metric: str, logarithmic: Iterable[str] = ()
) -> go.Figure | None:
    """Draw the best metric of each trial against each hyperparameter that varied; None where none did.

    The better three quarters of the trials have the whole height, and the best lie on top.
    ``logarithmic``: dotted names of the hyperparameters that were drawn evenly in the logarithm.
    """
    known = [(t, best) for t in ranked(told, sign) if (best := t.best(sign)) is not None][::-1]
    given = {trial.id: dict(flat(trial.hparams)) for trial, _ in known}
    names = [
        name
        for name in dict.fromkeys(name for hparams in given.values() for name in hparams)
        if len({json.dumps(hparams.get(name), default=str) for hparams in given.values()}) > 1
    ]
    if not names:
        return None
    rows = math.ceil(len(names) / ABREAST)
    found = make_subplots(rows=rows, cols=min(ABREAST, len(names)), shared_yaxes=True)
    for place, name in enumerate(names):
        at = {"row": place // ABREAST + 1, "col": place % ABREAST + 1}
        with_it = [(trial, best) for trial, best in known if name in given[trial.id]]
        values = [given[trial.id][name] for trial, _ in with_it]
        numbers = all(type(value) in (int, float) for value in values)
        dots = go.Scatter(
            x=values if numbers else [escape(str(value)[:40]) for value in values],
            y=[best for _, best in with_it],
            text=[f"trial {trial.id}" for trial, _ in with_it],
            mode="markers",
            marker={
                "size": 8,
                "color": [math.log1p(len(trial.curve)) for trial, _ in with_it],
                "colorscale": "Viridis",
            },
            hovertemplate="%{text}: %{y}<br>%{x}<extra></extra>",
        )
        found.add_trace(dots, **at)
        # Left to itself an axis of 0.1, 0.3 and None is one of numbers, and None is not drawn.
        kind = "category" if not numbers else "log" if name in set(logarithmic) else "linear"
        found.update_xaxes(title_text=escape(name), type=kind, **at)
    low, high = sorted((known[len(known) // 4][1], known[-1][1]))
    margin = 0.06 * (high - low) or 1.0
    found.update_yaxes(range=[low - margin, high + margin])
    found.update_yaxes(title_text=escape(metric), col=1)
    found.update_layout(
        height=80 + 240 * rows, showlegend=False, template="plotly_white", margin={"t": 20, "r": 20}
    )
    return found


# ---------------------------------------------------------------- devices


def devices(told: Timeline, names: Mapping[str, str]) -> go.Figure:
    """Draw what each device was doing: held by a trial, draining (pale), in quarantine (grey)."""
    rows = {device: escape(names.get(device, device)) for device in told.devices}
    bars = []
    said = {"held": "trial {0.trial}", "draining": "trial {0.trial} has left"}
    for state, opacity in (("held", 1.0), ("draining", 0.4), ("quarantined", 0.8)):
        spans = [span for span in told.spans if span.state == state and span.device in rows]
        words = said.get(state, "quarantined: {0.why}")
        paints = ["#777" if span.trial is None else colour(span.trial) for span in spans]
        bars.append(
            go.Bar(
                x=[span.end - span.begin for span in spans],
                y=[rows[span.device] for span in spans],
                base=[span.begin for span in spans],
                orientation="h",
                text=[escape(words.format(span)) for span in spans],
                textposition="none",
                marker={"color": paints, "opacity": opacity},
                hovertemplate="%{y}: %{text}, %{x:.1f} s<extra></extra>",
            )
        )
    found = _figure(bars, SECONDS, "", height=120 + 26 * len(rows), barmode="overlay")
    found.update_yaxes(categoryarray=list(rows.values()), autorange="reversed", type="category")
    return found

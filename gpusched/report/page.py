"""The page itself: one file, no script, nothing from outside. Every text of a trial or a recipe is escaped."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from gpusched.journal.timeline import Timeline, TrialTimeline
from gpusched.report import svg
from gpusched.text import count, first_line, flat, show_duration, show_hparams, show_metric

#: Curves drawn and rows of the table; the best come first.
CURVES, ROWS = 120, 200

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --quiet: #66707c; --rule: #d9dee4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14181e; --quiet: #98a2ae; --rule: #333b46; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1000px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin: 2em 0 .4em; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: var(--quiet); }
svg text.on { fill: #fff; font-weight: 600; } svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .draining { opacity: .35; } .quiet { color: var(--quiet); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9em; width: 100%; }
th, td { text-align: left; padding: .25em .7em .25em 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n, th.n { text-align: right; } .bar { display: inline-block; height: .7em; background: #3a78c3; }
tr.best td { font-weight: 600; } code { font-size: .92em; overflow-wrap: anywhere; }
"""


def html(view: Mapping[str, Any], told: Timeline) -> str:
    """``view``: as ``status --json`` has it."""
    sign = 1.0 if view["mode"] == "max" else -1.0
    name = escape(view["experiment"])
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{name}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{name}</h1>",
        _headline(view, told),
        _best(view),
        f"<h2>Learning curves</h2>{_curves(view, told, sign)}",
        f"<h2>The best so far over time</h2>{_progress(view, told, sign)}",
        f"<h2>Who had which device</h2>{_allocation(told)}",
        _rungs(view),
        _importance(told, sign),
        _trials(view, told, sign),
        _decisions(view),
        "</body></html>\n",
    ]
    return "".join(parts)


def write(path: Path, view: Mapping[str, Any], told: Timeline) -> None:
    """Replace the report in one step. Raises OSError."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(html(view, told), "utf-8", "replace")
    aside.replace(path)


# ---------------------------------------------------------------- parts


def _headline(view: Mapping[str, Any], told: Timeline) -> str:
    state = view["state"] + (f" ({view['ending']})" if view.get("ending") else "")
    counts = ", ".join(f"{count} {state}" for state, count in view["trial_counts"].items())
    facts = (
        state,
        f"policy {view['policy']}",
        count(view["atoms"]["total"], "atom"),
        f"deadline {show_duration(view['deadline_s'])}, so far {show_duration(told.until)}",
        f"{count(len(told.trials), 'trial')}: {counts}" if counts else "no trial yet",
    )
    return f"<p class='quiet'>{escape(' · '.join(facts))}</p>"


def _best(view: Mapping[str, Any]) -> str:
    best = view.get("best")
    if not best:
        return "<p>No model is saved yet.</p>"
    hparams = escape(show_hparams(best["hparams"]))
    return (
        f"<p>Best: <b>{escape(view['metric'])} {show_metric(best['metric'])}</b>, trial {best['trial']} at step "
        f"{best['step']}, found after {show_duration(best['at_s'])}. <code>{hparams}</code></p>"
    )


def _ranked(told: Timeline, sign: float) -> list[TrialTimeline]:
    def place(trial: TrialTimeline) -> tuple[bool, float]:
        best = trial.best(sign)
        return best is None, -(best or 0.0) * sign

    return sorted(told.trials.values(), key=place)


def _curves(view: Mapping[str, Any], told: Timeline, sign: float) -> str:
    best = (view.get("best") or {}).get("trial")
    drawn = [trial for trial in _ranked(told, sign) if trial.best(sign) is not None]
    chart = [
        svg.Line(
            [(float(step), value) for _, step, value in trial.curve if value is not None],
            svg.colour(trial.id),
            f"trial {trial.id}: {show_hparams(trial.hparams)}",
            trial.id == best,
        )
        for trial in drawn[:CURVES]
    ]
    more = f"<p class='quiet'>the best {CURVES} of {len(drawn)}</p>" if len(drawn) > CURVES else ""
    return svg.lines(chart, x_label="step", y_label=view["metric"]) + more


def _progress(view: Mapping[str, Any], told: Timeline, sign: float) -> str:
    reports = sorted(
        (at, value)
        for trial in told.trials.values()
        for at, _, value in trial.curve
        if value is not None
    )
    points: list[tuple[float, float]] = []
    for at, value in reports:
        if not points or value * sign > points[-1][1] * sign:
            if points:
                points.append((at, points[-1][1]))
            points.append((at, value))
    if points:
        points.append((told.until, points[-1][1]))
    chart = [svg.Line(points, "#3a78c3", "the best metric reported so far", True)] if points else []
    return svg.lines(chart, x_label="seconds", y_label=view["metric"], height=220)


def _allocation(told: Timeline) -> str:
    row = {device: place for place, device in enumerate(told.devices)}
    bars = []
    for span in told.spans:
        if span.device not in row:
            continue
        trial = f"trial {span.trial}" if span.trial is not None else ""
        what = {"held": trial, "draining": f"{trial} has left, release being confirmed"}
        state_text = what.get(span.state, f"quarantined: {span.why}")
        title = f"{span.device}, {span.begin:.1f} to {span.end:.1f} s: {state_text}"
        paint = "#777" if span.trial is None else svg.colour(span.trial)
        text = {"held": str(span.trial), "quarantined": "out"}.get(span.state, "")
        bars.append(svg.Bar(row[span.device], span.begin, span.end, span.state, paint, title, text))
    return svg.rows(told.devices, bars, until=told.until, x_label="seconds") + (
        "<p class='quiet'>A number is a trial; pale: its release is being confirmed; grey: in quarantine.</p>"
    )


def _rungs(view: Mapping[str, Any]) -> str:
    found = view.get("rungs") or []
    rows = [
        (str(r["milestone"]), str(r["count"]), str(r["waiting"]), show_metric(r["cutoff"]))
        for r in found
    ]
    if not rows:
        return ""
    head = ("step", "trials recorded", "paused there", "cut-off")
    return f"<h2>Rungs</h2>{_table(head, rows, numbers=4)}"


def _importance(told: Timeline, sign: float) -> str:
    found = importance(told.trials.values(), sign)
    if not found:
        return ""
    words_of = {1: "larger is better", -1: "smaller is better", 0: "a choice"}
    rows = "".join(
        f"<tr><td>{escape(hparam.name)}</td><td class='n'>{hparam.strength:.2f}</td>"
        f"<td><span class='bar' style='width:{12 * hparam.strength:.1f}em'></span></td>"
        f"<td>{words_of[hparam.direction]}</td></tr>"
        for hparam in found
    )
    return (
        "<h2>Which hyperparameters mattered</h2><table><tr><th>hyperparameter</th><th class='n'>strength</th><th></th>"
        f"<th></th></tr>{rows}</table><p class='quiet'>How far the rank of a trial's best metric goes with the value, "
        f"0 to 1, over {found[0].trials} trials. Trials that were stopped early count with what they had.</p>"
    )


def _trials(view: Mapping[str, Any], told: Timeline, sign: float) -> str:
    states = {trial["id"]: trial for trial in view["trials"]}
    ranked = _ranked(told, sign)
    names = list(dict.fromkeys(name for trial in ranked for name, _ in flat(trial.hparams)))
    best = (view.get("best") or {}).get("trial")
    head = ("trial", "best", "step", "launches", "state", *names)
    out = [f"<h2>Trials</h2><div class='wide'><table><tr>{_cells('th', head, 4)}</tr>"]
    for trial in ranked[:ROWS]:
        seen = states.get(trial.id, {})
        step = trial.curve[-1][1] if trial.curve else 0
        state = seen.get("state", "")
        if seen.get("error"):
            state += f": {first_line(seen['error'])}"
        given = dict(flat(trial.hparams))
        cells = (
            str(trial.id),
            show_metric(trial.best(sign)),
            str(step),
            str(trial.launches),
            state,
        )
        values = [_value(given.get(name)) for name in names]
        mark = " class='best'" if trial.id == best else ""
        out.append(f"<tr{mark}>{_cells('td', (*cells, *values), 4)}</tr>")
    more = (
        f"<p class='quiet'>the best {ROWS} of {len(ranked)}; 'gpusched export' has all</p>"
        if len(ranked) > ROWS
        else ""
    )
    return "".join([*out, "</table></div>", more])


def _decisions(view: Mapping[str, Any]) -> str:
    found = view.get("decisions") or []
    rows = [
        (
            f"{decision['at']:.1f}",
            "" if decision["trial"] is None else str(decision["trial"]),
            decision["text"],
        )
        for decision in reversed(found)
    ]
    if not rows:
        return ""
    return f"<h2>The last decisions</h2>{_table(('seconds', 'trial', ''), rows, numbers=2)}"


# ---------------------------------------------------------------- small things


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    body = "".join(f"<tr>{_cells('td', row, numbers)}</tr>" for row in rows)
    return f"<table><tr>{_cells('th', head, numbers)}</tr>{body}</table>"


def _cells(tag: str, texts: Iterable[str], numbers: int) -> str:
    """Make a row; the first ``numbers`` cells are numbers."""
    return "".join(
        f"<{tag}{' class=n' if place < numbers else ''}>{escape(text)}</{tag}>"
        for place, text in enumerate(texts)
    )


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Importance:
    """Strength with which the rank of the best metric follows a hyperparameter, 0 to 1, over ``trials`` trials.

    ``direction``: +1 where larger values did better, -1 where smaller did, 0 for a choice among names.
    """

    name: str
    strength: float
    direction: int
    trials: int


def importance(trials: Iterable[TrialTimeline], sign: float) -> list[Importance]:
    """Rank the hyperparameters that varied: numbers by Spearman's correlation, names by the correlation ratio of ranks.

    The strongest comes first. A trial that was stopped early counts with the best it had by then: the ranks show what a
    policy saw rather than what a model could do.
    """
    bests = ((trial, trial.best(sign)) for trial in trials)
    known = [(dict(flat(trial.hparams)), best) for trial, best in bests if best is not None]
    if len(known) < 4:
        return []
    names = dict.fromkeys(name for hparams, _ in known for name in hparams)
    found = [_importance_of(name, known, sign) for name in names]
    ranked = [importance for importance in found if importance is not None]
    return sorted(ranked, key=lambda importance: -importance.strength)


def _importance_of(
    name: str, known: Sequence[tuple[Mapping[str, Any], float]], sign: float
) -> Importance | None:
    pairs = [(hparams[name], best * sign) for hparams, best in known if name in hparams]
    values = [value for value, _ in pairs]
    if len(pairs) < 4 or all(value == values[0] for value in values):
        return None
    ranks = _ranks([score for _, score in pairs])
    if all(type(value) in (int, float) and math.isfinite(value) for value in values):
        varied = len(set(ranks)) > 1
        rho = statistics.correlation(_ranks([float(v) for v in values]), ranks) if varied else 0.0
        return Importance(name, abs(rho), (rho > 0) - (rho < 0), len(pairs))
    groups: dict[str, list[float]] = {}
    for value, rank in zip(values, ranks, strict=True):
        groups.setdefault(json.dumps(value, sort_keys=True, default=str), []).append(rank)
    mean = sum(ranks) / len(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
    return Importance(name, math.sqrt(between / whole) if whole else 0.0, 0, len(pairs))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    place = 0
    while place < len(order):
        last = place
        while last + 1 < len(order) and values[order[last + 1]] == values[order[place]]:
            last += 1
        for index in order[place : last + 1]:
            ranks[index] = (place + last) / 2 + 1
        place = last + 1
    return ranks

"""The page of a search, or of several: one file that needs nothing from outside, plotly's own script in it, compressed.

Every text of a trial or a recipe is escaped: plots get theirs as JSON in which no tag can begin.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpusched.journal.timeline import Timeline
from gpusched.report import figures
from gpusched.report.figures import Figure
from gpusched.report.measures import best_over_time, importance, measured_speed, ranked
from gpusched.text import count, first_line, flat, show_duration, show_hparams, show_metric

#: Rows of the table; the best come first.
ROWS = 200

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --quiet: #66707c; --rule: #d9dee4; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --paper: #14181e; --quiet: #98a2ae; --rule: #333b46; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1100px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin: 2em 0 .2em; }
.plot { min-height: 60px; } .quiet { color: var(--quiet); } .wide { overflow: auto; max-height: 32em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9em; width: 100%; }
th, td { text-align: left; padding: .25em .7em .25em 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n, th.n { text-align: right; } tr.best td { font-weight: 600; } code { font-size: .92em; overflow-wrap: anywhere; }
@media print { body { max-width: none; margin: 0; } .wide { overflow: visible; max-height: none; }
  .plot, tr { break-inside: avoid; } h2 { break-after: avoid; } .modebar { display: none; } }
"""

#: Unpacks plotly, and draws the plots in the page's colours; again when these change, as for printing.
_SCRIPT = """
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById('plotly').textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  const plots = JSON.parse(document.getElementById('plots').textContent);
  const colours = () => {
    const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { automargin: true, gridcolor: css('--rule'), zerolinecolor: css('--rule'), linecolor: css('--rule') };
    const modebar = { bgcolor: 'rgba(0,0,0,0)', color: css('--quiet'), activecolor: css('--ink') };
    return { modebar, font: { color: css('--ink') }, paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)', axis };
  };
  const draw = () => Promise.all(Object.entries(plots).map(([id, { data, layout }]) => {
    const { axis, ...rest } = colours();
    const usual = { height: 400, margin: { l: 70, r: 20, t: 25, b: 45 }, hovermode: 'closest' };
    const axes = { xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis } };
    return Plotly.react(id, data, { ...usual, ...layout, ...rest, ...axes }, { responsive: true, displaylogo: false });
  }));
  await draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  addEventListener('beforeprint', draw);
  addEventListener('afterprint', draw);
  document.documentElement.dataset.drawn = Math.round(performance.now());
})().catch(error => {
  console.error(error);
  for (const plot of document.querySelectorAll('.plot')) plot.textContent = `this browser cannot draw: ${error}`;
});
"""


def html(view: Mapping[str, Any], told: Timeline) -> str:
    """Compose the report of one search. ``view``: as ``status --json`` has it."""
    sign = 1.0 if view["mode"] == "max" else -1.0
    metric = view["metric"]
    mattered = importance(told.trials.values(), sign)
    best = {view["experiment"]: best_over_time(told, sign)}
    assumed = {int(size): s for size, s in (view.get("speed") or {}).items()}
    measured = measured_speed(told.trials.values())
    has_metric = any(best.values())
    sections: list[tuple[str, Figure | None, str]] = [
        ("Learning curves by step", figures.curves(told, sign, metric, over_time=False), ""),
        ("Learning curves by time", figures.curves(told, sign, metric, over_time=True), ""),
        ("The best so far over time", figures.progress(best, metric) if has_metric else None, ""),
        ("Metric by allocation", figures.by_size(told, metric), _SIZE_WORDS),
        ("Allocations", figures.allocations(told) if told.spans else None, _BOX_WORDS),
        ("Devices", figures.devices(told) if told.spans else None, _DEVICE_WORDS),
        ("Rungs", figures.rungs(view["rungs"], metric) if view.get("rungs") else None, ""),
        ("Hyperparameters", figures.parallel(told, sign, metric) if mattered else None, ""),
        (
            "Which hyperparameters mattered",
            figures.importance(mattered) if mattered else None,
            f"How far the rank of a trial's best metric goes with the value, 0 to 1, over "
            f"{mattered[0].trials if mattered else 0} trials. Trials that were stopped early count with what they had.",
        ),
        ("Speed-up", figures.speed(measured, assumed) if len(measured) > 1 else None, ""),
    ]
    asked = [f"<p class='quiet'>{escape(view['whatif'])}</p>"] if view.get("whatif") else []
    parts = [_headline(view, told), _best(view), *asked]
    return page(view["experiment"], parts, sections, [_trials(view, told, sign), _decisions(view)])


_SIZE_WORDS = (
    "The colour is the number of atoms that a trial had; dotted: paused, or being launched. "
    "The line is where exploration ended."
)
_BOX_WORDS = "A box is as long as the allocation lasted and as high as it had devices: its area is device-seconds."
_DEVICE_WORDS = "Pale: the release is being confirmed; grey: in quarantine."


def page(
    title: str,
    top: Iterable[str],
    sections: Iterable[tuple[str, Figure | None, str]],
    bottom: Iterable[str],
) -> str:
    """Compose a page of HTML, plots under headings with a remark each, and more HTML."""
    drawn = [(head, plot, words) for head, plot, words in sections if plot is not None]
    plots = {f"plot-{place}": plot for place, (_, plot, _) in enumerate(drawn)}
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *top,
    ]
    for place, (head, _, words) in enumerate(drawn):
        remark = f"<p class='quiet'>{escape(words)}</p>" if words else ""
        parts.append(f"<h2>{escape(head)}</h2>{remark}<div class='plot' id='plot-{place}'></div>")
    data = json.dumps(plots, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return "".join(
        [
            *parts,
            *bottom,
            f"<script type='application/json' id='plots'>{data}</script>",
            f"<script type='text/plain' id='plotly'>{_plotly()}</script>",
            f"<script>{_SCRIPT}</script></body></html>\n",
        ]
    )


@functools.cache
def _plotly() -> str:
    """Return plotly.js packed: 2 MB of a page instead of 5."""
    source = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, 6, mtime=0)).decode()


def write(path: Path, text: str) -> None:
    """Replace a page in one step. Raises OSError."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, "utf-8", "replace")
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


def _trials(view: Mapping[str, Any], told: Timeline, sign: float) -> str:
    states = {trial["id"]: trial for trial in view["trials"]}
    trials = ranked(told, sign)
    names = list(dict.fromkeys(name for trial in trials for name, _ in flat(trial.hparams)))
    best = (view.get("best") or {}).get("trial")
    head = ("trial", "best", "step", "launches", "state", *names)
    out = [f"<h2>Trials</h2><div class='wide'><table><tr>{_cells('th', head, 4)}</tr>"]
    for trial in trials[:ROWS]:
        seen = states.get(trial.id, {})
        step = trial.curve[-1][1] if trial.curve else 0
        state = seen.get("state", "")
        if seen.get("error"):
            state += f": {first_line(seen['error'])}"
        given = dict(flat(trial.hparams))
        score = show_metric(trial.best(sign))
        cells = [str(trial.id), score, str(step), str(trial.launches), state]
        values = (given.get(name) for name in names)
        cells += [f"{v:.4g}" if isinstance(v, float) else _words(v) for v in values]
        mark = " class='best'" if trial.id == best else ""
        out.append(f"<tr{mark}>{_cells('td', cells, 4)}</tr>")
    out.append("</table></div>")
    if len(trials) > ROWS:
        more = f"the best {ROWS} of {len(trials)}; 'gpusched export' has all"
        out.append(f"<p class='quiet'>{more}</p>")
    return "".join(out)


def _decisions(view: Mapping[str, Any]) -> str:
    rows = []
    for decision in reversed(view.get("decisions") or []):
        trial = "" if decision["trial"] is None else str(decision["trial"])
        rows.append((f"{decision['at']:.1f}", trial, decision["text"]))
    if not rows:
        return ""
    table = table_of(("seconds", "trial", ""), rows, numbers=2)
    return f"<h2>The last decisions</h2><div class='wide'>{table}</div>"


# ---------------------------------------------------------------- small things


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Compose a table; the first ``numbers`` columns are numbers."""
    body = "".join(f"<tr>{_cells('td', row, numbers)}</tr>" for row in rows)
    return f"<table><tr>{_cells('th', head, numbers)}</tr>{body}</table>"


def _cells(tag: str, texts: Iterable[str], numbers: int) -> str:
    """Make a row; the first ``numbers`` cells are numbers."""
    return "".join(
        f"<{tag}{' class=n' if place < numbers else ''}>{escape(text)}</{tag}>"
        for place, text in enumerate(texts)
    )


def _words(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# ---------------------------------------------------------------- several searches


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchData:
    """One search. ``view``: as ``status --json`` has it; ``recipe``: as resolved, with all defaults."""

    view: Mapping[str, Any]
    told: Timeline
    recipe: Mapping[str, Any]

    @property
    def name(self) -> str:
        found: str = self.view["experiment"]
        return found

    @property
    def sign(self) -> float:
        return 1.0 if self.view["mode"] == "max" else -1.0


def differences(searches: Sequence[SearchData]) -> dict[str, list[str]]:
    """Return the keys of recipes that differ, with each search's value in words; a key that is not there is empty."""
    recipes = [dict(flat(search.recipe)) for search in searches]
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    found = {name: [_words(recipe.get(name)) for recipe in recipes] for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def standing(search: SearchData) -> dict[str, Any]:
    """Return what a comparison says of one search, as JSON has it."""
    view, told = search.view, search.told
    best = view.get("best") or {}
    held = [span.end - span.begin for span in told.spans if span.state == "held"]
    return {
        "experiment": search.name,
        "policy": view["policy"],
        "metric": view["metric"],
        "best": best.get("metric"),
        "best_at_s": best.get("at_s"),
        "trials": len(told.trials),
        "deadline_s": view["deadline_s"],
        "device_seconds_held": round(sum(held), 3),
        "curve": best_over_time(told, search.sign),
    }


def comparison(searches: Sequence[SearchData]) -> str:
    """Compose the page of several searches: the best of each over time, and what differs in their recipes."""
    names = [search.name for search in searches]
    rows = []
    for search in searches:
        found = standing(search)
        at = "" if found["best_at_s"] is None else show_duration(found["best_at_s"])
        held = show_duration(found["device_seconds_held"])
        cells = (show_metric(found["best"]), at, str(found["trials"]), held, found["policy"])
        rows.append((search.name, *cells))
    head = ("search", "best", "found after", "trials", "time of devices", "policy")
    curves = {search.name: best_over_time(search.told, search.sign) for search in searches}
    metrics = sorted({search.view["metric"] for search in searches})
    differ = [(name, *values) for name, values in differences(searches).items()]
    bottom = "<h2>What differs in the recipes</h2>" + (
        f"<div class='wide'>{table_of(('key', *names), differ)}</div>"
        if differ
        else "<p>Nothing.</p>"
    )
    warning = ""
    if len(metrics) > 1:
        warning = f"<p><b>Different metrics: {escape(', '.join(metrics))}.</b></p>"
    return page(
        " · ".join(names),
        [warning, table_of(head, rows)],
        [("The best so far over time", figures.progress(curves, " / ".join(metrics)), "")],
        [bottom],
    )

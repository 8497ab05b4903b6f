"""The page of a search: one file that needs nothing from outside, plotly's own script in it.

Every text of a trial or a recipe is escaped: plots get theirs as JSON in which no tag can begin. The whole script is in
the page (5 MB), since plotly's Python package brings no smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from gpusched.dashboard.model import Standing, idle_shares
from gpusched.journal.timeline import Timeline
from gpusched.report import figures
from gpusched.text import count, flat, hparam_texts, show_duration, show_hparams, show_metric

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2430; background: #fff; max-width: 1100px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin: 2em 0 .2em; }
.quiet { color: #66707c; } .wide { overflow: auto; max-height: 32em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9em; width: 100%; }
th, td { text-align: left; padding: .25em .7em .25em 0; border-bottom: 1px solid #d9dee4; vertical-align: top; }
td.n, th.n { text-align: right; } tr.best td { font-weight: 600; } code { font-size: .92em; overflow-wrap: anywhere; }
@media print { .wide { overflow: visible; max-height: none; } tr { break-inside: avoid; } }
"""

Section = tuple[str, go.Figure | None, str]


def html(view: Standing, told: Timeline, space: Mapping[str, Any] | None = None) -> str:
    """Compose the report of one search. ``space``: the recipe's."""
    sign = 1.0 if view.mode == "max" else -1.0
    metric = view.metric
    of_best = f"The best {figures.LINES} trials." if len(told.trials) > figures.LINES else ""
    sections: list[Section] = [
        ("Learning curves", figures.curves(told, sign, metric), ""),
        ("The best so far", figures.progress(told, sign, metric), ""),
        (
            f"Best {metric} by hyperparameter",
            figures.scatter(told, sign, metric, _logarithmic(space or {})),
            "A point is a trial; the brighter, the more steps it was trained. The worst quarter may lie outside: "
            "a double click shows all.",
        ),
        (
            "Devices",
            figures.devices(told, {one.id: one.name for one in view.devices})
            if told.spans
            else None,
            "Pale: the release is being confirmed; grey: in quarantine.",
        ),
        *(
            (name, plot, of_best)
            for name, plot in figures.other_metrics(told, sign, metric).items()
        ),
    ]
    spent = "<br>".join(escape(line) for line in idle_shares(view))
    title = escape(view.experiment)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        _headline(view, told),
        _best(view),
        f"<p class='quiet'>{spent}</p>",
    ]
    return "".join([*parts, *_drawn(sections), _trials(view), "</body></html>\n"])


def _logarithmic(space: Mapping[str, Any]) -> set[str]:
    """Return the dotted names of hyperparameters that are drawn evenly in the logarithm."""
    forms = (name.rpartition(".") for name, _ in flat(space))
    return {name for name, _, form in forms if form in ("loguniform", "logint")}


def _drawn(sections: Iterable[Section]) -> Iterator[str]:
    """Yield plots under headings, with a remark each; the first plot brings plotly's script."""
    script = True
    for place, (head, plot, words) in enumerate(sections):
        if plot is None:
            continue
        remark = f"<p class='quiet'>{escape(words)}</p>" if words else ""
        drawn = plot.to_html(
            full_html=False,
            include_plotlyjs=script,
            div_id=f"plot-{place}",
            config={"displaylogo": False, "responsive": True},
        )
        script = False
        yield f"<h2>{escape(head)}</h2>{remark}{drawn}"


# ---------------------------------------------------------------- parts


def _headline(view: Standing, told: Timeline) -> str:
    counts = ", ".join(f"{number} {state}" for state, number in view.trial_counts.items())
    facts = (
        view.state + (f" ({view.ending})" if view.ending else ""),
        f"policy {view.policy}",
        count(view.atoms.total, "atom"),
        f"deadline {show_duration(view.deadline_s)}, so far {show_duration(told.until)}",
        f"{count(len(told.trials), 'trial')}: {counts}" if counts else "no trial yet",
    )
    return f"<p class='quiet'>{escape(' · '.join(facts))}</p>"


def _best(view: Standing) -> str:
    if (best := view.best) is None:
        return "<p>No model is saved yet.</p>"
    hparams = escape(show_hparams(best.hparams))
    return (
        f"<p>Best: <b>{escape(view.metric)} {show_metric(best.metric)}</b>, trial {best.trial} at step {best.step}, "
        f"found after {show_duration(best.at_s)}. <code>{hparams}</code></p>"
    )


def _trials(view: Standing) -> str:
    """Make the table of the trials in the view, the best first."""
    trials = view.trials
    names = list(dict.fromkeys(name for trial in trials for name, _ in hparam_texts(trial.hparams)))
    head = ("trial", "best", "step", "launches", "state", *names)
    out = [f"<h2>Trials</h2><div class='wide'><table><tr>{_cells('th', head)}</tr>"]
    for trial in trials:
        state = f"{trial.state}: {trial.error}" if trial.error else trial.state
        score, given = show_metric(trial.best_metric), dict(hparam_texts(trial.hparams))
        cells = [str(trial.id), score, str(trial.step), str(trial.incarnation), state]
        cells += [given.get(name, "") for name in names]
        mark = " class='best'" if view.best and trial.id == view.best.trial else ""
        out.append(f"<tr{mark}>{_cells('td', cells)}</tr>")
    out.append("</table></div>")
    if view.trials_total > len(trials):
        more = f"{len(trials)} of {view.trials_total}; 'gpusched export --trials' has all"
        out.append(f"<p class='quiet'>{more}</p>")
    return "".join(out)


# ---------------------------------------------------------------- small things


def _cells(tag: str, texts: Iterable[str]) -> str:
    """Make a row; the first four cells are numbers."""
    return "".join(
        f"<{tag}{' class=n' if place < 4 else ''}>{escape(text)}</{tag}>"
        for place, text in enumerate(texts)
    )

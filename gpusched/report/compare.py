"""Several searches on one page: the best of each over time, and what differs in their recipes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from gpusched.journal.timeline import Timeline
from gpusched.report import figures
from gpusched.report.page import page, table_of
from gpusched.text import flat, show_duration, show_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
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


def differences(searches: Sequence[Search]) -> dict[str, list[str]]:
    """Return the keys of recipes that differ, with each search's value in words; a key that is not there is empty."""
    recipes = [dict(flat(search.recipe)) for search in searches]
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    found = {name: [_words(recipe.get(name)) for recipe in recipes] for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _words(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def standing(search: Search) -> dict[str, Any]:
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
        "curve": figures.best_over_time(told, search.sign),
    }


def html(searches: Sequence[Search]) -> str:
    """Compose the comparison."""
    names = [search.name for search in searches]
    rows = []
    for search in searches:
        found = standing(search)
        at = "" if found["best_at_s"] is None else show_duration(found["best_at_s"])
        held = show_duration(found["device_seconds_held"])
        cells = (show_metric(found["best"]), at, str(found["trials"]), held, found["policy"])
        rows.append((search.name, *cells))
    head = ("search", "best", "found after", "trials", "time of devices", "policy")
    curves = {search.name: figures.best_over_time(search.told, search.sign) for search in searches}
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

"""``report.html``: what is read from a journal, what mattered, and a page that needs nothing from outside."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpusched.journal.timeline import (
    IncarnationTimeline,
    ReportedStep,
    Timeline,
    TrialTimeline,
    read,
)
from gpusched.protocol import Report
from gpusched.report import page, svg
from gpusched.report.page import importance
from tests.journal_samples import EVIL, story

VIEW: dict[str, Any] = {
    "experiment": "digits-1 & co",
    "state": "finished",
    "ending": "deadline",
    "policy": "fifo",
    "metric": "acc<uracy",
    "mode": "max",
    "deadline_s": 60.0,
    "atoms": {"total": 2},
    "trial_counts": {"stopped": 1, "failed": 1},
    "best": {"trial": 0, "step": 2, "metric": 0.75, "at_s": 3.0, "hparams": {"act": EVIL}},
    "rungs": [{"milestone": 2, "count": 1, "waiting": 0, "cutoff": None}],
    "trials": [{"id": 1, "state": "failed", "error": f"ValueError: {EVIL}\ntrace"}],
    "decisions": [{"at": 1.5, "trial": None, "text": EVIL}],
}


# ---------------------------------------------------------------- the page


class Checker(HTMLParser):
    """Tags must close in order, and nothing may be fetched or run."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert tag not in ("script", "link", "img", "iframe", "object"), tag
        for name, value in attrs:
            assert name not in ("src", "href", "onload", "onclick"), (tag, name, value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> set[str]:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "url(" not in text.replace("url(#plot)", "")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    return checker.seen


def test_the_page_is_whole_and_harmless(tmp_path: Path) -> None:
    data = read(story(tmp_path / "journal.db"))
    page.write(tmp_path / "report.html", VIEW, data)
    text = (tmp_path / "report.html").read_text()
    assert {"svg", "polyline", "rect", "table"} <= checked(text)
    assert "digits-1 &amp; co" in text
    assert "acc&lt;uracy" in text
    assert "opt.lr" in text
    assert "quarantined: Xid 79" in text
    assert "failed: ValueError: &lt;/title&gt;" in text
    assert [path.name for path in tmp_path.glob("*.html*")] == ["report.html"]


def test_an_experiment_that_has_only_begun() -> None:
    view = {**VIEW, "best": None, "rungs": [], "trials": [], "decisions": [], "trial_counts": {}}
    text = page.html(view, Timeline())
    checked(text)
    assert "No model is saved yet." in text
    assert text.count("nothing to draw yet") == 2


def test_a_curve_that_runs_away_hides_nothing_of_the_others() -> None:
    usual = [(float(n), 0.5 + n / 100) for n in range(50)]
    chart = [
        svg.Line(usual, "red", "usual"),
        svg.Line([(1.0, 1e30), (2.0, -1e300)], "blue", "away"),
    ]
    text = svg.lines(chart, x_label="step", y_label="loss")
    checked(text)
    labels = [float(found) for found in re.findall(r'text-anchor="end">([-\d.e+]+)<', text)]
    assert max(labels) < 2
    assert all(abs(float(y)) < 2000 for y in re.findall(r",(-?[\d.]+)", text))


# ---------------------------------------------------------------- importance


def trials(*given: tuple[dict[str, Any], float | None]) -> list[TrialTimeline]:
    return [
        TrialTimeline(
            n,
            hparams,
            [IncarnationTimeline(1, (), 0.0, [ReportedStep(1.0, Report(1, 1, 1), metric, None)])],
        )
        for n, (hparams, metric) in enumerate(given)
    ]


def test_importance_by_rank() -> None:
    found = importance(
        trials(
            *(
                ({"lr": 10.0**-n, "width": n, "act": "ab"[n % 2], "fixed": 1}, float(n) ** 3)
                for n in range(8)
            ),
            ({"lr": 7.0, "width": 99}, None),
        ),
        sign=1.0,
    )
    by_name = {one.name: one for one in found}
    assert [one.name for one in found] == ["lr", "width", "act"]
    assert (by_name["lr"].strength, by_name["lr"].direction) == (pytest.approx(1.0), -1)
    assert (by_name["width"].strength, by_name["width"].direction) == (pytest.approx(1.0), 1)
    assert by_name["lr"].trials == 8
    assert 0 < by_name["act"].strength < 0.5
    assert by_name["act"].direction == 0


def test_importance_where_less_is_better() -> None:
    (found,) = importance(trials(*(({"lr": n}, float(n)) for n in range(5))), sign=-1.0)
    assert found.direction == -1


def test_a_choice_that_decides_everything() -> None:
    given = [({"opt": "sgd"}, 1.0), ({"opt": "adam"}, 2.0)] * 3
    (found,) = importance(trials(*given), sign=1.0)
    assert found.strength == pytest.approx(1.0)


def test_too_few_or_equal_trials_say_nothing() -> None:
    assert importance(trials(({"lr": 1}, 1.0), ({"lr": 2}, 2.0)), sign=1.0) == []
    (flat,) = importance(trials(*(({"lr": n}, 1.0) for n in range(6))), sign=1.0)
    assert flat.strength == 0.0
    assert math.isfinite(flat.strength)

"""``report.html``: plots of a journal, and a page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from gpusched.dashboard.model import from_json
from gpusched.journal.timeline import (
    IncarnationTimeline,
    ReportedStep,
    Timeline,
    TrialTimeline,
    read,
)
from gpusched.protocol import Report
from gpusched.report import figures, page
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
    "devices": [{"id": "d1", "label": "GPU 1"}],
    "trials": [{"id": 1, "state": "failed", "error": f"ValueError: {EVIL}"}],
}


def told(*metrics: Sequence[float | None], sizes: Sequence[int] = (1,)) -> Timeline:
    """A trial for each list of metrics, a step a second; a launch on each of ``sizes`` for a share of the steps."""
    found = Timeline(devices=("gpu0", "gpu1", "gpu2", "gpu3"), until=100.0)
    for number, values in enumerate(metrics):
        launches = []
        share = -(-len(values) // len(sizes))
        for place, size in enumerate(sizes):
            part = list(enumerate(values, 1))[place * share : (place + 1) * share]
            steps = [
                ReportedStep(10.0 * number + step, Report(1, step, step, 1.0 / size), value)
                for step, value in part
            ]
            begin = 10.0 * number + place * share
            launches.append(IncarnationTimeline(place + 1, found.devices[:size], begin, steps))
        found.trials[number] = TrialTimeline(number, {"lr": 10.0**-number}, launches)
    return found


# ---------------------------------------------------------------- plots


def test_a_curve_that_runs_away_hides_nothing_of_the_others() -> None:
    usual = [0.5 + n / 100 for n in range(50)]
    plot = figures.curves(told(usual, [1e30, -1e300]), 1.0, "loss")
    low, high = plot.layout.yaxis.range
    assert 0.4 < low < 0.5 < high < 1.1
    assert max(max(trace.y) for trace in plot.data) == 1e30, "it is there for whoever zooms out"


def test_a_step_that_was_trained_twice_is_drawn_once_and_a_single_point_is_drawn() -> None:
    """A curve went back where a crash had, and trials of one report, most of a search, were not to be seen."""
    given = told([0.1, 0.2, 0.9, 0.3, 0.4], [0.5], [None, 0.6], sizes=(3, 2))
    for launch, steps in zip(given.trials[0].incarnations, ((1, 2, 3), (3, 4)), strict=True):
        for number, step in zip(steps, launch.steps, strict=True):
            step.report.step = number
            step.report.metrics.update(loss=step.metric or 0.0)
    (other,) = figures.other_metrics(given, 1.0, "acc")["loss"].data
    for plot in (figures.curves(given, 1.0, "acc").data[-1], other):
        assert (plot.mode, plot.x, plot.y) == ("lines", (1, 2, 3, 4), (0.1, 0.2, 0.3, 0.4))
    single = figures.curves(given, 1.0, "acc").data[:2]
    assert [plot.mode for plot in single] == ["markers", "markers"]


def test_curves_may_have_a_logarithmic_axis() -> None:
    plot = figures.curves(told([0.5, 0.99], [0.9]), 1.0, "acc")
    (scale,) = plot.layout.updatemenus
    assert scale.buttons[1].args[0]["yaxis.type"] == "log"
    assert not figures.curves(told([-1.0, 3.0]), 1.0, "reward").layout.updatemenus


def test_many_trials_are_quiet_lines_below_the_best() -> None:
    plot = figures.curves(told(*([n / 100] for n in range(100))), 1.0, "acc")
    named = [trace for trace in plot.data if trace.line.color != figures.OTHERS]
    assert len(named) == figures.LINES
    assert named[-1].name.startswith("trial 99: lr=1e-99"), "the best is drawn last"


def test_the_metric_against_each_hyperparameter_that_varied() -> None:
    given = told([0.1], [0.2, 0.3], [0.3], [None])
    for number, trial in given.trials.items():
        trial.hparams = {"net": {"lr": 10.0**-number}, "opt": "a<"[number % 2], "same": 1}
    plot = figures.scatter(given, 1.0, "acc", ["net.lr"])
    assert plot is not None
    lr, opt = plot.data
    assert (lr.x, lr.y) == ((1.0, 0.01, 0.1), (0.1, 0.3, 0.3))
    assert opt.x == ("a", "a", "&lt;")
    assert (plot.layout.xaxis.type, plot.layout.xaxis.title.text) == ("log", "net.lr")
    assert plot.layout.xaxis2.type == "category", "one of numbers has no place for None"
    assert figures.scatter(told([0.1]), 1.0, "acc") is None
    many = figures.scatter(told([0.9], *([0.1 + n / 1000] for n in range(20))), 1.0, "acc")
    assert many is not None
    assert many.layout.yaxis.range[1] > 0.9, "the best is in view"


def test_bad_trials_do_not_press_the_good_ones_together() -> None:
    """Three of four trials fill the height, of a loss as of a score; so do the curves of the best."""
    losses = [*([0.4 + n / 100] for n in range(30)), *([8.0 - n] for n in range(6))]
    plot = figures.scatter(told(*losses), -1.0, "loss")
    assert plot is not None
    low, high = plot.layout.yaxis.range
    assert low < 0.4 < 0.6 < high < 1.0
    assert plot.data[0].y[-1] == 0.4, "the best is drawn last"
    low, high = figures.curves(told(*losses), -1.0, "loss").layout.yaxis.range
    assert low < 0.4 < high < 1.0
    fallen = [60.0 - n for n in range(20)]
    low, high = figures.curves(
        told(fallen, fallen, fallen, [1e6] * 20), -1.0, "ppl"
    ).layout.yaxis.range
    assert 40.0 < low < 41.0 < 60.0 < high < 61.0
    plot = figures.progress(told([1e6, 900.0, *fallen, 50.0]), -1.0, "ppl")
    assert plot is not None
    assert plot.layout.yaxis.range[1] < 100.0
    assert (plot.data[0].x[0], plot.data[0].y[0]) == (1.0, 1e6)
    assert (plot.data[0].x[-2:], plot.data[0].y[-2:]) == ((22.0, 100.0), (41.0, 41.0))


def test_other_numbers_of_the_best_trials_have_curves_too() -> None:
    given = told(*([0.01 * number, 0.0] for number in range(30)))
    for trial in given.trials.values():
        for _, step in trial.steps():
            step.report.metrics.update(loss=1.0 / step.report.step, note="nan")
    ((name, plot),) = figures.other_metrics(given, 1.0, "acc").items()
    assert (name, len(plot.data)) == ("loss", figures.LINES)
    assert (plot.data[0].name, plot.data[0].y) == ("trial 29", (1.0, 0.5))


# ---------------------------------------------------------------- the page


class Checker(HTMLParser):
    """Tags must close in order, and nothing may be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("link", "img", "iframe", "object"), tag
        for name, value in attrs:
            assert name not in ("src", "href", "onload", "onclick"), (tag, name, value)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> str:
    """Return the page without plotly's own script."""
    text = text.replace(get_plotlyjs(), "")
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "url(" not in text
    return text


def test_the_page_is_whole_and_harmless(tmp_path: Path) -> None:
    data = read(story(tmp_path / "journal.db"))
    text = page.html(from_json(VIEW), data)
    assert text.count(get_plotlyjs()) == 1
    text = checked(text)
    assert "quarantined: Xid 79" in text
    assert "GPU 1" in text, "devices have the names that people know"
    assert EVIL not in text
    assert "digits-1 &amp; co" in text
    assert "failed: ValueError: &lt;/title&gt;" in text
    assert "1 of 2; 'gpusched export --trials' has all" in text, "a view has 200 at most"


def test_an_experiment_that_has_only_begun() -> None:
    view = {**VIEW, "best": None, "trials": [], "trial_counts": {}}
    text = page.html(from_json(view), Timeline())
    checked(text)
    assert "No model is saved yet." in text

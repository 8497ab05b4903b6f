"""``report.html``: plots of a journal, a page that needs nothing from outside, searches side by side, and a browser."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpusched import cli
from gpusched.journal.timeline import (
    DeviceSpan,
    IncarnationTimeline,
    ReportedStep,
    Timeline,
    TrialTimeline,
    read,
)
from gpusched.protocol import Report
from gpusched.report import figures, measures, page
from gpusched.report.measures import importance
from gpusched.report.page import SearchData, differences
from gpusched.sim.setup import Setup
from scripts.kept import simulate_into
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


def told(*metrics: Sequence[float | None], sizes: Sequence[int] = (1,)) -> Timeline:
    """A trial for each list of metrics, a step a second; a launch on each of ``sizes`` for a share of the steps."""
    found = Timeline(devices=("gpu0", "gpu1", "gpu2", "gpu3"), until=100.0)
    for number, values in enumerate(metrics):
        launches = []
        share = -(-len(values) // len(sizes))
        for place, size in enumerate(sizes):
            part = list(enumerate(values, 1))[place * share : (place + 1) * share]
            steps = [
                ReportedStep(10.0 * number + step, Report(step, step, 1), value, 1.0 / size)
                for step, value in part
            ]
            begin = 10.0 * number + place * share
            launches.append(IncarnationTimeline(place + 1, found.devices[:size], begin, steps))
        found.trials[number] = TrialTimeline(number, {"lr": 10.0**-number}, launches)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for policy in ("hypersched", "asha"):
        simulate_into(folder, Setup(policy=policy, atoms=4, deadline_s=30.0, scaling="sqrt"))
    return folder


def folder_of(runs: Path, policy: str) -> Path:
    (found,) = (folder for folder in runs.iterdir() if policy in folder.name)
    return found


# ---------------------------------------------------------------- plots


def drawn(figure: figures.Figure) -> list[float]:
    return [y for trace in figure["data"] for y in trace["y"] if y is not None]


def test_the_area_of_the_boxes_is_the_device_seconds_held(runs: Path) -> None:
    """Against the launches and exits of a whole simulated search, which the boxes do not look at."""
    found = read(folder_of(runs, "hypersched") / "journal.db")
    held = sum(
        len(launch.devices) * ((launch.exited_at or found.until) - launch.launched_at)
        for trial in found.trials.values()
        for launch in trial.incarnations
    )
    (trace,) = figures.allocations(found)["data"]
    assert max(trace["y"]) > 1, "a trial that grew"
    area = sum(y * width for y, width in zip(trace["y"], trace["width"], strict=True))
    assert area == pytest.approx(held)
    top = max(base + y for base, y in zip(trace["base"], trace["y"], strict=True))
    assert top <= len(found.devices)


def test_boxes_do_not_overlap_and_stand_as_low_as_they_can() -> None:
    spans = [
        *(DeviceSpan(f"gpu{n}", "held", 0.0, 4.0, 1) for n in range(2)),
        DeviceSpan("gpu2", "held", 1.0, 9.0, 2),
        DeviceSpan("gpu0", "draining", 4.0, 5.0, 1),
        *(DeviceSpan(f"gpu{n}", "held", 5.0, 9.0, 3) for n in (0, 1, 3)),
    ]
    (trace,) = figures.allocations(Timeline(devices=("gpu0",), spans=spans))["data"]
    boxes = list(zip(trace["text"], trace["base"], trace["y"], trace["width"], strict=True))
    assert boxes == [("1", 0, 2, 4.0), ("2", 2, 1, 8.0), ("3", 0, 2, 4.0), ("3", 3, 1, 4.0)]


@pytest.mark.parametrize("over_time", [False, True])
def test_a_curve_that_runs_away_hides_nothing_of_the_others(over_time: bool) -> None:
    usual = [0.5 + n / 100 for n in range(50)]
    plot = figures.curves(told(usual, [1e30, -1e300]), 1.0, "loss", over_time=over_time)
    low, high = plot["layout"]["yaxis"]["range"]
    assert 0.4 < low < 0.5 < high < 1.1
    assert max(drawn(plot)) == 1e30, "it is there for whoever zooms out"


def test_many_trials_are_one_quiet_line_below_the_best() -> None:
    plot = figures.curves(told(*([n / 100] for n in range(100))), 1.0, "acc", over_time=False)
    rest, *lines = plot["data"]
    assert len(lines) == figures.LINES
    assert sorted({*rest["customdata"]}) == list(range(100 - figures.LINES))
    assert lines[-1]["name"].startswith("trial 99: lr=1e-99"), "the best is drawn last"


def test_metric_by_size_and_where_exploration_ended() -> None:
    plot = figures.by_size(told([0.1, 0.2, 0.3, 0.4], [0.1, 0.2], sizes=(1, 4)), "acc")
    by_name = {trace["name"]: trace for trace in plot["data"]}
    assert by_name["1 atom"]["y"] == [0.1, 0.2, None, 0.1, None]
    assert by_name["4 atoms"]["y"] == [0.3, 0.4, None, 0.2, None]
    assert by_name["paused, or launched"]["y"] == [0.2, 0.3, None, 0.1, 0.2, None]
    assert plot["layout"]["shapes"][0]["x0"] == 10.0


def test_speed_is_measured_within_trials_and_without_the_first_step() -> None:
    measured = measures.measured_speed(told([0.5] * 8, [0.5], sizes=(1, 4)).trials.values())
    assert measured == {1: 1.0, 4: pytest.approx(4.0)}
    plot = figures.speed(measured, {1: 1.0, 2: 1.8, 4: 3.0})
    assert [trace["name"] for trace in plot["data"]] == ["measured", "assumed", "linear"]
    assert plot["data"][1]["y"] == [1.0, 1.8, 3.0]


def test_parallel_coordinates_of_numbers_powers_and_names() -> None:
    given = told([0.1], [0.2], [0.3], [None])
    for number, trial in given.trials.items():
        trial.hparams = {"lr": 10.0**-number, "width": number, "opt": "ab"[number % 2], "same": 1}
    *axes, metric = figures.parallel(given, 1.0, "acc<")["data"][0]["dimensions"]
    assert [axis["label"] for axis in axes] == ["lr", "width", "opt"]
    assert axes[0]["values"] == pytest.approx([0.0, -1.0, -2.0])
    assert axes[0]["ticktext"] == ["0.01", "0.1", "1"]
    assert (axes[2]["values"], axes[2]["ticktext"]) == ([0, 1, 0], ["a", "b"])
    assert (metric["label"], metric["values"]) == ("acc&lt;", [0.1, 0.2, 0.3])


# ---------------------------------------------------------------- the page


class Checker(HTMLParser):
    """Tags must close in order, and nothing may be fetched."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("link", "img", "iframe", "object"), tag
        for name, value in attrs:
            assert name not in ("src", "href", "onload", "onclick"), (tag, name, value)
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> dict[str, str]:
    """Return the scripts of a page by their id."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert not re.search(r"https?://|url\(", text)
    return checker.scripts


def test_the_page_is_whole_and_harmless(tmp_path: Path) -> None:
    data = read(story(tmp_path / "journal.db"))
    page.write(tmp_path / "report.html", page.html(VIEW, data))
    text = (tmp_path / "report.html").read_text()
    scripts = checked(text)
    assert {*scripts} == {"plots", "plotly", "code"}
    plots = json.loads(scripts["plots"])
    assert [*plots] == re.findall(r"<div class='plot' id='([\w-]+)'>", text)
    assert "quarantined: Xid 79" in str(plots)
    assert "<" not in re.sub(r"<(extra|br|/extra)>", "", str(plots)), "a text that could be a tag"
    assert b"plotly.js" in gzip.decompress(base64.b64decode(scripts["plotly"]))[:200]
    assert "digits-1 &amp; co" in text
    assert "failed: ValueError: &lt;/title&gt;" in text
    assert [path.name for path in tmp_path.glob("*.html*")] == ["report.html"]


def test_an_experiment_that_has_only_begun() -> None:
    view = {**VIEW, "best": None, "rungs": [], "trials": [], "decisions": [], "trial_counts": {}}
    text = page.html(view, Timeline())
    checked(text)
    assert "No model is saved yet." in text


# ---------------------------------------------------------------- side by side


def test_several_searches_side_by_side(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    names = sorted(folder.name for folder in runs.iterdir())
    assert cli.main(["report", *names, "--dir", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [search["experiment"] for search in found["searches"]] == names
    assert found["differences"]["policy.name"] == ["asha", "hypersched"]
    text = (runs / found["report"]).read_text()
    plots = json.loads(checked(text)["plots"])
    assert [trace["name"] for trace in plots["plot-0"]["data"]] == names
    assert "<td>policy.name</td><td>asha</td><td>hypersched</td>" in text


def test_differences_of_recipes() -> None:
    recipes = [{"a": 1, "space": {"lr": "x"}}, {"a": 1, "space": {"lr": "y"}, "new": [2]}]
    searches = [SearchData(view=VIEW, told=Timeline(), recipe=recipe) for recipe in recipes]
    assert differences(searches) == {"space.lr": ["x", "y"], "new": ["", "[2]"]}


# ---------------------------------------------------------------- a browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to look at a page with")
@pytest.mark.parametrize("look", ["light", "dark"])
def test_a_browser_draws_every_plot_without_an_error(runs: Path, tmp_path: Path, look: str) -> None:
    """A picture of the page is kept in the folder ``$ARTEFACTS``, where that is set."""
    name = folder_of(runs, "hypersched").name
    target = tmp_path / "report.html"
    assert cli.main(["report", name, "--dir", str(runs), "-o", str(target)]) == 0
    plots = target.read_text().count("class='plot'")
    picture = Path(os.environ.get("ARTEFACTS", tmp_path)).resolve() / f"report-{look}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"]
    options += ["--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom"]
    options += [f"--screenshot={picture}", "--window-size=1200,5600", "--hide-scrollbars"]
    options += ["--blink-settings=preferredColorScheme=0"] if look == "dark" else []
    done = subprocess.run(
        [str(CHROMIUM), *options, f"--user-data-dir={tmp_path}/profile", target.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    said = [
        line for line in done.stderr.splitlines() if "CONSOLE" in line and "GL Driver" not in line
    ]
    assert said == []
    assert 'data-drawn="' in done.stdout, "the script came to its end"
    assert done.stdout.count('class="plot js-plotly-plot"') == plots >= 9
    assert picture.read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- which hyperparameters mattered


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

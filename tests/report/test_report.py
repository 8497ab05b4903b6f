"""``report.html``: what is read from a journal, what mattered, and a page that needs nothing from outside."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.decisions import Command, Launch
from gpusched.core.events import (
    DeviceQuarantined,
    DeviceReadmitted,
    DevicesReleased,
    Event,
    ExperimentStarted,
    Reported,
    TrialExited,
)
from gpusched.errors import DamagedState
from gpusched.journal.log import Journal
from gpusched.report import page, svg
from gpusched.report.data import Data, Span, TrialStory, importance, read

EVIL = '</title><script>alert("x")</script>'
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


def story(path: Path) -> Path:
    """Two devices, two trials: one is resized, one loses its device."""
    told: list[tuple[Event, list[Command]]] = [
        (
            ExperimentStarted(at=0.0, devices=("d0", "d1"), unusable={"d1": "a stranger's"}),
            [Launch(0, 1, ("d0",), {"act": EVIL, "opt": {"lr": 0.1}})],
        ),
        (Reported(at=1.0, trial=0, incarnation=1, seq=1, step=1, metric=0.5), []),
        (DeviceReadmitted(at=2.0, device="d1"), [Launch(1, 1, ("d1",), {"act": "relu"})]),
        (Reported(at=3.0, trial=0, incarnation=1, seq=2, step=2, metric=0.75), []),
        (Reported(at=3.5, trial=1, incarnation=1, seq=1, step=1, metric=None), []),
        (TrialExited(at=4.0, trial=0, incarnation=1, outcome="yielded"), []),
        (DevicesReleased(at=4.5, devices=("d0",)), [Launch(0, 2, ("d0",), {"act": EVIL})]),
        (DeviceQuarantined(at=5.0, device="d1", reason="Xid 79"), []),
        (TrialExited(at=5.5, trial=1, incarnation=1, outcome="killed"), []),
        (TrialExited(at=6.0, trial=0, incarnation=1, outcome="lost"), []),  # of before
        (Reported(at=7.0, trial=0, incarnation=2, seq=3, step=3, metric=0.6), []),
    ]
    journal = Journal.create(path, {"epoch": 1})
    for event, commands in told:
        journal.append(event, commands)
    journal.commit()
    journal.close()
    return path


def test_curves_and_who_had_which_device(tmp_path: Path) -> None:
    data = read(story(tmp_path / "journal.db"))
    assert (data.devices, data.until) == (("d0", "d1"), 7.0)
    assert data.trials[0].curve == [(1.0, 1, 0.5), (3.0, 2, 0.75), (7.0, 3, 0.6)]
    assert data.trials[1].curve == [(3.5, 1, None)]
    assert (data.trials[0].launches, data.trials[0].best(1.0), data.trials[0].best(-1.0)) == (
        *(2, 0.75, 0.5),
    )
    assert data.trials[1].best(1.0) is None
    assert sorted(data.spans, key=lambda span: (span.device, span.begin)) == [
        Span("d0", "held", 0.0, 4.0, 0),
        Span("d0", "draining", 4.0, 4.5, 0),
        Span("d0", "held", 4.5, 7.0, 0),
        Span("d1", "quarantined", 0.0, 2.0, None, "a stranger's"),
        Span("d1", "held", 2.0, 5.0, 1),
        Span("d1", "quarantined", 5.0, 7.0, None, "Xid 79"),
    ]


def test_it_is_read_beside_a_writer(tmp_path: Path) -> None:
    path = story(tmp_path / "odd #1?.db")
    writer = Journal.open(path)
    count = len(list(writer.entries()))
    later = Reported(at=9.0, trial=0, incarnation=2, seq=4, step=4, metric=0.9)
    writer.append(later, [])
    assert read(path).until == 7.0, "what is not committed is not there"
    writer.commit()
    assert read(path).until == 9.0
    writer.append(Reported(at=10.0, trial=0, incarnation=2, seq=5, step=5, metric=0.9), [])
    writer.commit()
    writer.close()
    assert count == 11


def test_what_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("no database, and long enough to be looked at" * 100)
    with pytest.raises(DamagedState, match="cannot be read for a report"):
        read(tmp_path / "journal.db")
    with pytest.raises(DamagedState):
        read(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()


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
    text = page.html(view, Data())
    checked(text)
    assert "There is no model yet." in text
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


@pytest.mark.parametrize("count", [1, 2, 199, 200, 201, 5000])
def test_long_curves_are_thinned_from_end_to_end(count: int) -> None:
    points = [(float(n), 1.0) for n in range(count)]
    thin = svg.thinned(points)
    assert len(thin) == min(count, svg.POINTS_MAX)
    assert (thin[0], thin[-1]) == (points[0], points[-1])


# ---------------------------------------------------------------- importance


def trials(*given: tuple[dict[str, Any], float | None]) -> list[TrialStory]:
    return [
        TrialStory(n, hparams, 1, [(1.0, 1, metric)]) for n, (hparams, metric) in enumerate(given)
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

"""Reports: what may stand in one, and reading a trial's own file from behind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.executors.local.reporting import (
    BadReport,
    Line,
    last_seq_in,
    lines_after,
    make_report,
)


def made(metrics: object, seq: object = 1, step: object = 2, step_time_s: object = 0.5) -> object:
    return make_report(9.0, 7, 3, (seq, step, step_time_s, metrics), "accuracy")


def test_a_plain_report_is_taken_as_it_is() -> None:
    metrics = {"accuracy": 0.5, "epoch": 3}
    report = make_report(9.0, 7, 3, (1, 2, 0.25, metrics), "accuracy")
    assert (report.at, report.trial, report.incarnation) == (9.0, 7, 3)
    assert (report.seq, report.step, report.metric, report.step_time_s) == (1, 2, 0.5, 0.25)
    assert report.metrics is metrics, "the hot path copies nothing"


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", math.nan, math.inf, -math.inf, 10**400, -(10**400)]
)
def test_what_is_not_finite_has_no_metric_and_stays_json(value: object) -> None:
    report = make_report(0.0, 0, 1, (1, 1, None, {"accuracy": value}), "accuracy")
    assert report.metric is None
    assert report.metrics["accuracy"] in ("nan", "inf", "-inf")
    json.dumps(dict(report.metrics), allow_nan=False)


def test_large_finite_numbers_are_numbers() -> None:
    report = make_report(0.0, 0, 1, (1, 1, None, {"accuracy": 1e300, "n": 2**60}), "accuracy")
    assert (report.metric, report.metrics["n"]) == (1e300, float(2**60))


@pytest.mark.parametrize("value", [None, True, [1.0], {"a": 1}, "0.5", "NaN", ""])
def test_the_metric_must_be_a_number(value: object) -> None:
    with pytest.raises(BadReport, match="without a number for 'accuracy'"):
        made({"accuracy": value, "loss": 1.0})


@pytest.mark.parametrize("metrics", [None, [], "accuracy", 1])
def test_metrics_must_be_an_object(metrics: object) -> None:
    with pytest.raises(BadReport, match="without metrics"):
        made(metrics)


@pytest.mark.parametrize("number", [None, 0, -1, 1.0, "1", True, 2**53])
def test_seq_must_be_a_whole_number(number: object) -> None:
    with pytest.raises(BadReport, match="whole numbers"):
        made({"accuracy": 1.0}, seq=number)


@pytest.mark.parametrize("number", [None, -1, 1.5, "1", True, 2**53])
def test_step_must_be_a_whole_number(number: object) -> None:
    with pytest.raises(BadReport, match="whole numbers"):
        made({"accuracy": 1.0}, step=number)


@pytest.mark.parametrize("time_s", [None, "1", True, -1.0, math.nan, math.inf, 10**20])
def test_a_step_time_that_cannot_be_is_not_known(time_s: object) -> None:
    report = make_report(0.0, 0, 1, (1, 1, time_s, {"accuracy": 1.0}), "accuracy")
    assert report.step_time_s is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    seq=json_values, step=json_values, time_s=json_values, metrics=json_values, value=json_values
)
def test_anything_is_a_report_or_a_bad_report(
    seq: object, step: object, time_s: object, metrics: object, value: object
) -> None:
    for told in (metrics, {"accuracy": value}):
        try:
            report = make_report(0.0, 0, 1, (seq, step, time_s, told), "accuracy")
        except BadReport:
            continue
        assert report.metric is None or math.isfinite(report.metric)
        json.dumps(dict(report.metrics), allow_nan=False)


def line(seq: int, **more: object) -> str:
    return (
        json.dumps({"i": 1, "n": seq, "k": seq * 10, "s": 0.1, "m": {"accuracy": 0.5}, **more})
        + "\n"
    )


def test_lines_after_a_number_in_order(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text("".join(map(line, range(1, 1001))))
    assert [found.seq for found in lines_after(path, 997)] == [998, 999, 1000]
    assert lines_after(path, 999)[0] == Line(1000, 10_000, 0.1, {"accuracy": 0.5})
    assert lines_after(path, 1000) == []
    assert [found.seq for found in lines_after(path, 0)] == list(range(1, 1001))
    assert last_seq_in(path) == 1000


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    for _ in range(2):
        assert (lines_after(path, 0), last_seq_in(path)) == ([], 0)
        path.write_text("")


@pytest.mark.parametrize(
    "torn", ['{"i": 1, "n": 4, "k"', "\n\n", "null\n", '{"n": "4"}\n', "\x00" * 5000, "[" * 9000]
)
def test_a_torn_or_foreign_line_is_nobodys_report(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text("".join(map(line, (1, 2, 3))) + torn)
    assert [found.seq for found in lines_after(path, 1)] == [2, 3]
    assert last_seq_in(path) == 3
    with path.open("a") as file:
        file.write("\n" + line(5))
    assert [found.seq for found in lines_after(path, 1)] == [2, 3, 5]


def test_a_number_twice_is_one_report(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text(line(1) + line(2) + line(2) + line(1))
    assert [found.seq for found in lines_after(path, 0)] == [1, 2]


def test_a_report_as_long_as_a_frame_does_not_hide_those_before_it(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text(line(1) + line(2) + line(3, m={"accuracy": 1.0, "x" * 30_000: 1.0}))
    assert [found.seq for found in lines_after(path, 1)] == [2, 3]
    assert last_seq_in(path) == 3

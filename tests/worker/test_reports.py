from __future__ import annotations

import json
import math
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpusched.folder.files import is_sound
from gpusched.worker.reports import REPORT_LIMIT_BYTES, ReportLog, clean_metrics, shown
from tests.worker.fakes import Bench, run_rank


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (3, 3),
        (True, 1),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (10**400, "inf"),
        (-(10**400), "-inf"),
        (1 << 62, 1 << 62),
        (1 << 70, float(1 << 70)),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(0.25), 0.25),
        (np.array([0.25]), 0.25),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([2]), 2),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(math.nan), "nan"),
    ],
)
def test_what_counts_as_a_number(value: Any, expected: Any) -> None:
    clean = clean_metrics({"m": value}, None)["m"]
    assert clean == expected
    assert type(clean) is type(expected)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0.5", "'m' is str '0.5', not a number"),
        (None, "'m' is NoneType None, not a number"),
        ([0.5], r"'m' is list \[0.5\], not a number"),
        (1j, "'m' is complex 1j, not a number"),
        (torch.zeros(3), r"'m' has shape \(3,\): report one number, e.g. m.mean\(\)"),
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
        ("x" * 1000, r"xxx\.\.\., not a number"),
    ],
)
def test_what_does_not(value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        clean_metrics({"accuracy": 0.5, "m": value}, "accuracy")


def test_the_recipes_metric_must_be_there() -> None:
    with pytest.raises(
        ValueError, match=r"has loss, val_accuracy but not 'accuracy'.*metric: val_accuracy"
    ):
        clean_metrics({"loss": 1.0, "val_accuracy": 0.5}, "accuracy")
    with pytest.raises(ValueError, match=r"has no metric but not 'accuracy'"):
        clean_metrics({}, "accuracy")


def test_lines_of_the_contract_numbered_over_incarnations(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    first = ReportLog(path, incarnation=1)
    assert first.append(1, 0.5, {"accuracy": 0.1, "loss": "nan"}) == (1, True)
    assert first.append(2, None, {"accuracy": 0.2}) == (2, True)
    assert ReportLog(path, incarnation=2).append(3, 0.25, {}) == (3, True)
    lines = path.read_bytes().splitlines()
    assert all(is_sound(line) and b'"crc"' in line for line in lines)
    records = [json.loads(line) for line in lines]
    for record in records:
        del record["crc"]
    assert records == [
        {"i": 1, "n": 1, "k": 1, "s": 0.5, "m": {"accuracy": 0.1, "loss": "nan"}},
        {"i": 1, "n": 2, "k": 2, "s": None, "m": {"accuracy": 0.2}},
        {"i": 2, "n": 3, "k": 3, "s": 0.25, "m": {}},
    ]
    assert path.stat().st_mode & 0o777 == 0o600


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_file_torn_anywhere_goes_on_with_the_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "reports.jsonl"
    log = ReportLog(path, 1)
    for step in range(1, 5):
        log.append(step, 0.5, {"accuracy": 0.5})
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    whole = len(data.split(b"\n")) - 1
    if data.rpartition(b"\n")[2].endswith(b'"}'):
        whole += 1  # only the newline is missing
    seq, kept = ReportLog(path, 2).append(9, None, {"accuracy": 1.0})
    assert (seq, kept) == (whole + 1, True)
    assert json.loads(path.read_bytes().splitlines()[-1])["n"] == seq


def test_the_last_number_is_found_behind_a_long_ruin(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    ReportLog(path, 1).append(1, None, {})
    with path.open("ab") as file:
        file.write(b"\xff" * 300_000)
    assert ReportLog(path, 2).last_seq == 1


def test_a_damaged_last_line_has_used_its_number(tmp_path: Path) -> None:
    """Else the next report would have the number of one that the daemon has, and count as told before."""
    path = tmp_path / "reports.jsonl"
    log = ReportLog(path, 1)
    for step in range(1, 5):
        log.append(step, 0.5, {"accuracy": 0.5})
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"n":4', b'"n":2'))
    assert ReportLog(path, 2).append(5, None, {}) == (5, True)


def test_the_daemon_may_know_of_more_than_the_disk_kept(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    ReportLog(path, 1).append(1, None, {})
    assert ReportLog(path, 2, known_seq=7).append(2, None, {}) == (8, True)
    assert ReportLog(path, 3, known_seq=7).append(2, None, {}) == (9, True)


def test_too_large_a_report_is_refused_and_not_written(tmp_path: Path) -> None:
    log = ReportLog(tmp_path / "reports.jsonl", 1)
    with pytest.raises(ValueError, match=f"bytes in 5000 metrics.*more than {REPORT_LIMIT_BYTES}"):
        log.append(1, None, {f"metric-{n}": 0.5 for n in range(5000)})
    with pytest.raises(ValueError, match="the longest name: 'yyyy"):
        log.append(1, None, {"y" * 10_000_000: 1})
    assert log.append(1, None, {}) == (1, True)


def test_a_full_disk_costs_lines_but_not_the_trial(tmp_path: Path, bench: Bench) -> None:
    """A real refusal of the kernel: the file may not grow beyond 93 bytes."""
    path = tmp_path / "reports.jsonl"

    def report() -> list[bool]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (93, resource.RLIM_INFINITY))
        log = ReportLog(path, 1)
        kept = [log.append(step, 0.5, {"accuracy": 0.5})[1] for step in range(1, 5)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        return [*kept, log.append(5, 0.5, {"accuracy": 0.5})[1]]

    ended = run_rank(report, bench)
    assert ended.value == [True, False, False, False, True]
    assert ended.stderr.count("gpusched: ") == 1
    numbers = []
    for line in path.read_text().splitlines():
        try:
            numbers.append(json.loads(line)["n"])
        except ValueError:
            numbers.append("torn")
    assert numbers == [1, "torn", 5]


def test_a_line_for_people() -> None:
    assert shown(3, 0.5, {"accuracy": 0.97123456, "n": 4, "loss": "nan"}) == (
        "step 3  accuracy 0.971235  n 4  loss nan  (0.50 s)"
    )

"""A trial's own file of reports: written whole or torn, and read from behind."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.folder.files import is_sound
from gpusched.folder.reports import REPORT_LIMIT_BYTES, ReportLog, last_seq, reports_after
from gpusched.protocol import Report
from gpusched.worker.endings import say
from tests.worker.fakes import Bench, run_rank


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports.jsonl"


def add(
    log: ReportLog, step: int, step_time_s: float = 0.0, **metrics: float | str
) -> tuple[int, bool]:
    """Append a report: its number, and whether the file has it."""
    report = Report(0, 0, step, step_time_s, dict(metrics))
    kept = log.append(report)
    return report.seq, kept


def test_lines_of_the_contract_numbered_over_incarnations(path: Path) -> None:
    first = ReportLog(path, incarnation=1)
    assert add(first, 1, 0.5, accuracy=0.1, loss="nan") == (1, True)
    assert add(first, 2, accuracy=0.2) == (2, True)
    assert add(ReportLog(path, incarnation=2), 3, 0.25) == (3, True)
    lines = path.read_bytes().splitlines()
    assert all(is_sound(line) and b'"crc"' in line for line in lines)
    records = [json.loads(line) for line in lines]
    for record in records:
        del record["crc"]
    assert records == [
        {"kind": "report", "i": 1, "n": 1, "k": 1, "s": 0.5, "m": {"accuracy": 0.1, "loss": "nan"}},
        {"kind": "report", "i": 1, "n": 2, "k": 2, "s": 0.0, "m": {"accuracy": 0.2}},
        {"kind": "report", "i": 2, "n": 3, "k": 3, "s": 0.25},
    ]
    assert path.stat().st_mode & 0o777 == 0o600


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_file_torn_anywhere_goes_on_with_the_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "reports.jsonl"
    log = ReportLog(path, 1)
    for step in range(1, 5):
        add(log, step, 0.5, accuracy=0.5)
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    whole = len(data.split(b"\n")) - 1
    if data.rpartition(b"\n")[2].endswith(b'"}'):
        whole += 1  # only the newline is missing
    seq, kept = add(ReportLog(path, 2), 9, accuracy=1.0)
    assert (seq, kept) == (whole + 1, True)
    assert json.loads(path.read_bytes().splitlines()[-1])["n"] == seq


def test_the_last_number_is_found_behind_a_long_ruin(path: Path) -> None:
    add(ReportLog(path, 1), 1)
    with path.open("ab") as file:
        file.write(b"\xff" * 300_000)
    assert ReportLog(path, 2).last_seq == 1


def test_the_daemon_may_know_of_more_than_the_disk_kept(path: Path) -> None:
    add(ReportLog(path, 1), 1)
    assert add(ReportLog(path, 2, known_seq=7), 2) == (8, True)
    assert add(ReportLog(path, 3, known_seq=7), 2) == (9, True)


def test_too_large_a_report_is_refused_and_not_written(tmp_path: Path) -> None:
    log = ReportLog(tmp_path / "reports.jsonl", 1)
    with pytest.raises(ValueError, match=f"bytes in 5000 metrics.*more than {REPORT_LIMIT_BYTES}"):
        add(log, 1, **{f"metric-{n}": 0.5 for n in range(5000)})
    with pytest.raises(ValueError, match="the longest name: 'yyyy"):
        add(log, 1, **{"y" * 10_000_000: 1})
    assert add(log, 1) == (1, True)


def test_a_full_disk_costs_lines_but_not_the_trial(path: Path) -> None:
    """A real refusal of the kernel: the file may not grow beyond 110 bytes."""

    def report() -> list[bool]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (110, resource.RLIM_INFINITY))
        log = ReportLog(path, 1, complain=say)
        kept = [add(log, step, 0.5, accuracy=0.5)[1] for step in range(1, 5)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        return [*kept, add(log, 5, 0.5, accuracy=0.5)[1]]

    ended = run_rank(report, Bench(path.parent))
    assert ended.value == [True, False, False, False, True]
    assert ended.stderr.count("gpusched: ") == 1
    numbers = []
    for line in path.read_text().splitlines():
        try:
            numbers.append(json.loads(line)["n"])
        except ValueError:
            numbers.append("torn")
    assert numbers == [1, "torn", 5]


def line(seq: int, **more: object) -> str:
    return (
        json.dumps({"i": 1, "n": seq, "k": seq * 10, "s": 0.1, "m": {"accuracy": 0.5}, **more})
        + "\n"
    )


def test_lines_after_a_number_in_order(path: Path) -> None:
    path.write_text("".join(map(line, range(1, 1001))))
    assert [found.seq for found in reports_after(path, 997)] == [998, 999, 1000]
    assert reports_after(path, 999)[0] == Report(1, 1000, 10_000, 0.1, {"accuracy": 0.5})
    assert reports_after(path, 1000) == []
    assert [found.seq for found in reports_after(path, 0)] == list(range(1, 1001))
    assert last_seq(path) == 1000


def test_no_file_and_an_empty_one(path: Path) -> None:
    for _ in range(2):
        assert (reports_after(path, 0), last_seq(path)) == ([], 0)
        path.write_text("")


@pytest.mark.parametrize(
    "torn", ['{"i": 1, "n": 4, "k"', "\n\n", "null\n", '{"n": "4"}\n', "\x00" * 5000, "[" * 9000]
)
def test_a_torn_or_foreign_line_is_nobodys_report(path: Path, torn: str) -> None:
    path.write_text("".join(map(line, (1, 2, 3))) + torn)
    assert [found.seq for found in reports_after(path, 1)] == [2, 3]
    assert last_seq(path) == 3
    with path.open("a") as file:
        file.write("\n" + line(5))
    assert [found.seq for found in reports_after(path, 1)] == [2, 3, 5]


def test_a_number_twice_is_one_report(path: Path) -> None:
    path.write_text(line(1) + line(2) + line(2) + line(1))
    assert [found.seq for found in reports_after(path, 0)] == [1, 2]


def test_a_report_as_long_as_a_frame_does_not_hide_those_before_it(path: Path) -> None:
    path.write_text(line(1) + line(2) + line(3, m={"accuracy": 1.0, "x" * 30_000: 1.0}))
    assert [found.seq for found in reports_after(path, 1)] == [2, 3]
    assert last_seq(path) == 3

"""Every command on one finished experiment: data and words, mistakes included."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusched
from tests.e2e.sandbox import Sandbox


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path_factory.mktemp("finished"))
    recipe = box.recipe("counted.py", space={"x": {"uniform": [0, 1]}, "net": {"width": 8}})
    assert box.gpusched("run", recipe).code == 0, box.log()
    return box


def test_a_report_is_written_into_the_folder_or_elsewhere(
    finished: Sandbox, tmp_path: Path
) -> None:
    finished.call("report")
    assert "Learning curves" in (finished.experiment / "report.html").read_text()
    again = tmp_path / "again.html"
    told = finished.call("report", "-o", again, "--json").json()
    assert told["report"] == str(again)
    assert again.read_text() == (finished.experiment / "report.html").read_text()
    refused = finished.call("report", "-o", tmp_path / "none" / "r.html")
    assert refused.code == 2
    assert "-o FILE writes to another file" in refused.err


def test_a_search_ends_with_the_best_model_on_disk(finished: Sandbox) -> None:
    best = finished.call("best", "--json").json()
    assert set(best) >= {"trial", "metric", "value", "step", "atoms", "hparams", "checkpoint"}
    assert best["step"] == 3
    assert best["value"] == pytest.approx(best["hparams"]["x"] + 3)
    files = finished.experiment.glob("trials/*/hparams.json")
    tried = [json.loads(file.read_text())["hparams"]["x"] for file in files]
    assert (len(tried), max(tried)) == (2, best["hparams"]["x"])
    assert (Path(best["checkpoint"]) / "manifest.json").exists()
    told = finished.call("best").out
    assert f"gpusched.load('{finished.experiment}')" in told
    assert f"  seed = {best['seed']}\n" in told
    assert gpusched.load(finished.experiment).state["model"]["weight"].item() == 3
    last = finished.paths.final_view
    view = json.loads(before := last.read_text())
    last.write_text(json.dumps({**view, "best_unsaved": {**view["trials"][1], "best_step": 2}}))
    told = finished.call("best").out
    last.write_text(before)
    behind = f"of trial {view['trials'][1]['id']} at step 2, which has no checkpoint"
    assert behind in told
    options = {f"--seed={best['seed']}", "--net.width=8", f"--x={best['hparams']['x']}"}
    assert options < {*finished.call("explain", best["trial"]).out.split()}


def test_help_lists_every_command_and_each_has_its_own(finished: Sandbox) -> None:
    out = finished.call("--help").out
    names = [
        line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != "-"
    ]
    assert {"run", "resume", "watch", "status", "ls", "best", "logs", "explain", "stop"} <= set(
        names
    )
    for name in names:
        result = finished.call(name, "--help")
        assert result.code == 0
        assert f"gpusched {name}" in result.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "did you mean status?"),
        (["help", "stauts"], "did you mean status?"),
        *((["deadline", no, "+9m"], f"'{no}' is not a duration") for no in ("-10m", "counted")),
        (["status", "--jsn"], "--jsn"),
        (["status", "nonsense"], "no search is called 'nonsense'"),
        (["explain"], "arguments are required: TRIAL"),
        (["logs", "0", "--rank"], "--rank: expected one argument"),
        (["logs", "0", "--rank", "one"], "--rank: invalid int value: 'one'"),
        *((["logs", no], f"'{no}' is not the number of a trial") for no in ("seven", "²", "-1")),
        (["pause", "counted", "0"], "'counted' is not the number of a trial"),
        (["stop", "1"], "trial 1 is meant by 'gpusched explain 1' and 'gpusched stop --trial 1'"),
        (["logs", "7"], "trial 7"),
        (["logs", "0", "--rank", "3"], "no rank 3; the last is 0"),
        (["logs", "0", "--launch", "9"], "no launch 9; the latest is 1"),
        (["explain", "99"], "trial 99 does not exist; so far: trials 0 to 1"),
        (["pause", "0"], "is over; 'gpusched status"),
        (["stop"], "is over; 'gpusched status"),
        (["run", "missing.yaml"], "missing.yaml"),
        (["run", "a.yaml", "seed=1", "atoms=2"], "is given as --set seed=1 --set atoms=2"),
        (["resume"], "is over"),
    ],
)
def test_mistakes_get_one_message_and_code_2(
    finished: Sandbox, words: list[str], said: str
) -> None:
    result = finished.call(*words)
    assert result.code == 2, result.text
    assert said in result.err
    assert len(result.err.splitlines()) <= 3


def test_a_search_may_be_named_behind_an_option_and_alone(finished: Sandbox) -> None:
    name = finished.experiment.name
    for words in (["explain", "trial-0", "--json"], ["logs", "0", "-f"], ["status", "--json"]):
        assert finished.call(*words, name).code == 0, words
    assert "one argument too many: more" in finished.call("status", name, "more").err


def test_logs_of_a_rank_go_on_where_a_launch_has_not_printed_yet(finished: Sandbox) -> None:
    logs = finished.experiment / "trials" / "0001" / "logs"
    (logs / "2").mkdir()
    try:
        for words in (["--rank", "0"], ["--rank", "0", "-f"], ["--launch", "2", "-f"]):
            assert finished.call("logs", "1", *words).code == 0, words
        assert "launch 2; --launch N shows one of the 1 before" in finished.call("logs", "1").err
    finally:
        (logs / "2").rmdir()


def test_export_has_a_row_a_report(finished: Sandbox) -> None:
    rows = list(csv.DictReader(io.StringIO(finished.call("export").out)))
    assert len(rows) == 6
    assert {row["trial"] for row in rows} == {"0", "1"}
    assert {row["hparams.net.width"] for row in rows} == {"8"}
    lines = finished.call("export", "--json").out.splitlines()
    assert [json.loads(line)["step"] for line in lines] == [int(row["step"]) for row in rows]


def test_gc_keeps_the_best_model_and_nothing_else(finished: Sandbox) -> None:
    before = finished.call("best", "--json").json()
    asked = finished.call("gc", "--json").json()
    assert (bool(asked["checkpoints"]), asked["removed"]) == (True, False)
    assert "--yes removes them" in finished.call("gc").out
    assert all(Path(folder).exists() for folder in asked["checkpoints"])
    done = finished.call("gc", "--yes", "--json").json()
    assert (done["checkpoints"], done["removed"]) == (asked["checkpoints"], True)
    assert not any(Path(folder).exists() for folder in done["checkpoints"])
    assert finished.call("best", "--json").json() == before
    assert (Path(before["checkpoint"]) / "manifest.json").exists()
    assert "nothing to remove" in finished.call("gc").out


def test_a_journal_with_a_changed_event_is_not_continued(finished: Sandbox) -> None:
    folder = Path(shutil.copytree(finished.experiment, finished.root / "changed" / "changed"))
    with sqlite3.connect(folder / "journal.db") as journal:
        (last,) = journal.execute("SELECT max(seq) FROM events").fetchone()
        journal.execute("UPDATE events SET at = at + 1 WHERE seq = ?", (last - 2,))
    journal.close()
    refused = finished.call("resume", folder)
    assert refused.code == 5
    assert f"event {last - 2}" in refused.err
    assert "'gpusched best' prints" in refused.err
    assert finished.call("best", folder).code == 0

"""Loggers against the tools themselves (TensorBoard, MLflow on SQLite, offline W&B): each point there once.

What a tool has is read back with the tool's own reader.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.commands import Launch
from gpusched.core.events import DevicesReleased, TrialExited
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.journal.log import Journal
from gpusched.loggers.follow import Loggers
from gpusched.recipe.classes import check_log_to
from gpusched.sim.setup import Setup
from scripts.kept import simulate_into
from tests.helpers import children_of
from tests.rig import PATIENCE_S, wait_until

# MLflow's own use of SQLAlchemy and protobuf warns; that is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")

#: trial, step -> the value of Score
Curves = dict[tuple[int, int], float]


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPaths:
    setup = Setup(deadline_s=8, atoms=4, policy="asha", seed=3)
    _, folder = simulate_into(tmp_path_factory.mktemp("search"), setup)
    return ExperimentPaths(folder)


def curves(paths: ExperimentPaths) -> Curves:
    told = timeline.read(paths.journal)
    (name,) = {n for t in told.trials.values() for _, s in t.steps() for n in s.report.metrics}
    found: Curves = {}
    for trial in told.trials.values():
        for _, step in trial.steps():
            found.setdefault((trial.id, step.report.step), float(step.report.metrics[name]))
    assert len(found) > 40
    return found


# ---------------------------------------------------------------- what each tool has


def in_lines(folder: Path) -> Iterator[tuple[int, int, float]]:
    for line in (folder / "lines.jsonl").read_text().splitlines():
        trial, step, name, value = json.loads(line)
        if not name.startswith("gpusched/"):
            yield trial, step, value


def in_tensorboard(folder: Path) -> Iterator[tuple[int, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for run in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
        (tag,) = (t for t in events.Tags()["scalars"] if not t.startswith("gpusched/"))
        for event in events.Scalars(tag):
            yield int(run.name), event.step, event.value


def in_mlflow(folder: Path) -> Iterator[tuple[int, int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name != "Default")
    for run in client.search_runs([experiment.experiment_id], max_results=5000):
        (key,) = (k for k in run.data.metrics if not k.startswith("gpusched/"))
        for point in client.get_metric_history(run.info.run_id, key):
            yield int(run.info.run_name.rpartition("/")[2]), point.step, point.value


def leveldb_records(log: bytes) -> Iterator[bytes]:
    """Read a log in LevelDB's format behind the seven bytes that W&B puts before it; W&B has no reader in Python."""
    block, at, record = 1 << 15, 7, b""
    while at < len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        record += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def in_wandb(folder: Path) -> Iterator[tuple[int, int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for run in (folder / "wandb").glob("offline-run-*"):
        for data in leveldb_records(next(run.glob("*.wandb")).read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {
                    i.key or "/".join(i.nested_key): json.loads(i.value_json)
                    for i in record.history.item
                }
                (key,) = (k for k in items if not k.startswith(("gpusched/", "_")))
                yield int(run.name.rpartition("-")[2]), items["_step"], items[key]


#: A logger of one's own, which any machine has.
OWN = """
import json
from pathlib import Path
from gpusched.loggers import Logger

class Lines(Logger):
    def __init__(self, search, *, file="lines.jsonl"):
        path = search.folder / file
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\\n") + 1]
        rows = [json.loads(line) for line in whole.splitlines()]
        self.has = {row[0]: max(r[1] for r in rows if r[0] == row[0]) for row in rows}
        self.file = path.open("w")
        self.file.write(whole)
        self.file.flush()
    def begin(self, trial, hparams):
        return self.has.get(trial, -1)
    def write(self, trial, points):
        for point in points:
            for name, value in point.values.items():
                print(json.dumps([trial, point.step, name, value]), file=self.file)
        self.file.flush()
    def end(self, trial, state, best):
        print(json.dumps([trial, 0, f"gpusched/{state}", best]), file=self.file, flush=True)
"""
READERS: dict[str, Callable[[Path], Iterator[tuple[int, int, float]]]] = {
    "lines": in_lines,
    "tensorboard": in_tensorboard,
    "mlflow": in_mlflow,
    "wandb": in_wandb,
}


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(OWN)
    return f"{tmp_path / 'mine.py'}:Lines"


def loggers_of(paths: ExperimentPaths, log_to: dict[str, Any], folder: Path) -> Loggers:
    """Return those of a recipe with this ``log_to``."""
    recipe = json.loads(paths.resolved.read_bytes())
    paths.resolved.write_text(json.dumps({**recipe, "log_to": log_to}))
    return Loggers(paths, log_to, folder)


def assert_complete(name: str, folder: Path, expected: Curves) -> None:
    points = sorted(READERS[name](folder))
    assert [point[:2] for point in points] == sorted(expected), "each point once"
    for trial, step, value in points:
        assert value == pytest.approx(expected[trial, step], rel=1e-6)


def grows(search: ExperimentPaths, root: Path, shares: int) -> Iterator[ExperimentPaths]:
    """Yield a copy of the search, whose journal has one more of so many shares of the events each time."""
    root.mkdir()
    for file in (search.resolved, search.began, search.final_view):
        shutil.copy(file, root / file.relative_to(search.root))
    paths = ExperimentPaths(root)
    with contextlib.closing(sqlite3.connect(search.journal)) as whole:
        whole.backup(part := sqlite3.connect(paths.journal))
        events = whole.execute("SELECT * FROM events ORDER BY seq").fetchall()
    with contextlib.closing(part):
        part.execute("DELETE FROM events")
        for share in range(shares):
            more = events[share * len(events) // shares : (share + 1) * len(events) // shares]
            part.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", more)
            part.commit()
            yield paths


# ---------------------------------------------------------------- tests


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("lines", 5),
        pytest.param("lines", 100, marks=pytest.mark.slow),
        *(pytest.param(name, 5, marks=pytest.mark.integrations) for name in [*READERS][1:]),
    ],
)
def test_a_tool_gets_every_point_once_although_its_process_is_killed(
    name: str, kills: int, search: ExperimentPaths, own: str, tmp_path: Path
) -> None:
    """Killed at random instants, from its start on, while the journal grows between one process and the next."""
    clock, logger = random.Random(name), own if name == "lines" else name
    for paths in grows(search, tmp_path / "grid", kills):
        command = [sys.executable, "-m", "gpusched.loggers.follow", str(paths.root), logger]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        time.sleep(clock.uniform(0.1, 0.8 if name == "lines" else 3.0))
        child.send_signal(signal.SIGKILL)
        child.communicate()
    (tmp_path / "fcntl.py").write_text("raise OSError('not the module of Python')")
    loggers = Loggers(paths, [logger], tmp_path)
    loggers.look()
    loggers.finish(limit_s=5 * PATIENCE_S)  # nothing may be there yet, and a tool imports for long
    assert not loggers.complaints, paths.logger_log(logger).read_text()
    assert_complete(name, paths.root, curves(paths))


@pytest.mark.integrations
def test_hyperparameters_and_states_are_with_the_runs(
    search: ExperimentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    uri = f"sqlite:///{tmp_path / 'm.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # what people set for MLflow
    log_to = {"mlflow": {}, "tensorboard": {"dir": str(tmp_path)}}
    # As left by a kill while the database was made.
    (tmp_path / "m.db.unfinished").write_bytes(b"half a database")
    loggers = loggers_of(search, log_to, tmp_path)
    loggers.look()
    loggers.finish(limit_s=5 * PATIENCE_S)
    states = {t["id"]: t["state"] for t in json.loads(search.final_view.read_bytes())["trials"]}
    told = timeline.read(search.journal)
    client = MlflowClient(uri)
    (experiment,) = (e for e in client.search_experiments() if e.name != "Default")
    runs = client.search_runs([experiment.experiment_id], max_results=5000)
    assert len(runs) == len(told.trials)
    for run in runs:
        trial = told.trials[int(run.info.run_name.rpartition("/")[2])]
        assert run.data.params == {name: str(value) for name, value in trial.hparams.items()}
        assert run.data.tags["gpusched.state"] == states[trial.id]
        assert run.info.status != "RUNNING"
        events = EventAccumulator(str(tmp_path / search.root.name / f"{trial.id:04d}"))
        events.Reload()
        assert "hparams" in events.Tags()["tensors"] or events.SummaryMetadata(
            "_hparams_/session_start_info"
        )


def test_a_process_that_keeps_failing_is_given_up_and_said_so(
    search: ExperimentPaths, own: str, tmp_path: Path
) -> None:
    """And what it lacks can be handed over when the tool is there again, in the recipe's folder."""
    away = search.root / "away"
    loggers = loggers_of(search, {own: {"file": "away/lines.jsonl"}}, tmp_path)
    wait_until(lambda: loggers.look() or loggers.complaints, "a complaint while the search runs")
    loggers.look()
    loggers.finish(limit_s=PATIENCE_S)
    while_it_runs, at_the_end = loggers.complaints
    why = "its process ended (status 1), and is started again: FileNotFoundError: "
    assert while_it_runs.startswith(f"log_to {own}: {why}")
    assert at_the_end.startswith(
        f"log_to {own}: not everything was handed over; `env -C {tmp_path} "
    )
    assert not children_of("gpusched.loggers.follow")
    away.mkdir()
    subprocess.run(at_the_end.split("`")[1], shell=True, check=True)
    lines = map(json.loads, (away / "lines.jsonl").read_text().splitlines())
    assert {line[:2] for line in map(tuple, lines)} >= set(curves(search))


def test_a_process_that_is_killed_is_started_again(
    search: ExperimentPaths, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a machine out of memory: what followed was in no tool.

    Its options are on no command line, where any user saw the password in MLflow's ``uri``.
    """
    monkeypatch.setattr("gpusched.loggers.follow.RETRY_S", 0.0)
    loggers = loggers_of(search, {own: {"file": "killed.jsonl"}}, tmp_path)
    loggers.look()
    (process,) = children_of("gpusched.loggers.follow")
    assert "killed.jsonl" not in str(process.cmdline())
    search.logger_log(own).unlink()  # by whoever makes room on the disk
    loggers.look()
    process.kill()
    wait_until(lambda: loggers.look() or loggers.complaints, "a complaint of its end")
    loggers.finish(limit_s=PATIENCE_S)
    (complaint,) = loggers.complaints
    assert "its process ended (status -9), and is started again" in complaint
    lines = map(json.loads, (search.root / "killed.jsonl").read_text().splitlines())
    assert any(not step for _, step, *_ in lines), "the states of the trials, at the end"


def test_a_tool_that_takes_long_has_the_time_and_the_daemon_does_not_wait(
    search: ExperimentPaths, own: str, tmp_path: Path
) -> None:
    loggers = loggers_of(search, {own: {"file": "told.jsonl"}}, tmp_path)
    with search.logger_log(own).open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # as a process before it that hands over still
        loggers.look()
        loggers.finish(limit_s=0.0)
    (complaint,) = loggers.complaints
    assert complaint.startswith(f"log_to {own}: it is still being handed what is left")
    wait_until(lambda: not children_of("gpusched.loggers.follow"), "the end of the tool's process")
    lines = map(json.loads, (search.root / "told.jsonl").read_text().splitlines())
    assert any(not step for _, step, *_ in lines), "the states of the trials, at the end"


def test_a_tool_that_is_not_installed_is_named(tmp_path: Path) -> None:
    missing = next((n for n in ("wandb", "mlflow") if find_spec(n) is None), None)
    if missing is None:
        pytest.skip("every tool is installed here")
    (_, why), *_ = check_log_to(missing, tmp_path)[1]
    assert f"pip install {missing}" in why


def test_a_logger_keeps_no_report_it_has_sent(search: ExperimentPaths) -> None:
    news = timeline.JournalTail(search.journal).read()
    assert len(news) > 40
    assert not any(incarnation.steps for _, incarnation, _ in news)


@pytest.mark.parametrize(
    ("log_to", "why"),
    [
        ("tensorbord", "did you mean tensorboard?"),
        ([{"mine.py:Lines": {"fil": "x"}}], "fil unknown option; there are file"),
        ([3], "should be a map of keys, not 3, as in [tensorboard"),
    ],
)
def test_a_wrong_log_to_is_refused(log_to: Any, why: str, own: str, tmp_path: Path) -> None:
    _, findings = check_log_to(log_to, tmp_path)
    assert [path for path, _ in findings] == [("log_to",)]
    assert why in findings[0][1]


def test_a_logger_of_ones_own_is_told_how_trials_ended(own: str, tmp_path: Path) -> None:
    """The last view has 200 trials: of others MLflow had runs that never ended.

    And none of trials that failed before their first report.
    """
    setup = Setup(deadline_s=30, atoms=4, policy="asha", options={"r": 1, "R": 2, "eta": 2.0})
    search = ExperimentPaths(simulate_into(tmp_path, setup)[1])
    journal = Journal.open(search.journal)
    assert list(journal.entries()), "is read to its end before it continues"
    journal.append(DevicesReleased(at=30.0, devices=()), [Launch(9999, 1, ("d0",), {"lr": 9.0})])
    journal.append(TrialExited(at=31.0, trial=9999, incarnation=1, outcome="failed"), [])
    journal.commit()
    journal.close()
    log_to, findings = check_log_to({own: {"file": "told.jsonl"}}, tmp_path)
    assert not findings
    loggers = loggers_of(search, log_to, tmp_path)
    loggers.look()
    loggers.finish(limit_s=PATIENCE_S)
    lines = list(map(json.loads, (search.root / "told.jsonl").read_text().splitlines()))
    ended = {trial: score for trial, step, _, score in lines if not step}
    told = timeline.read(search.journal)
    assert len(ended) > 200
    assert ended == {trial.id: trial.best(1.0) for trial in told.trials.values()}
    assert lines[-1] == [9999, 0, "gpusched/failed", None]

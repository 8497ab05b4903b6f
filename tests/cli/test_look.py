"""``gpusched status`` in words, and the last word of a run."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusched.cli import main
from gpusched.cli.afterwards import _of_trial, records
from gpusched.cli.look import lines, summary
from gpusched.daemon import session
from gpusched.dashboard.model import AtomCounts, DeviceRow, Standing, TrialRow
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.timeline import IncarnationTimeline, ReportedStep, Timeline, TrialTimeline
from gpusched.protocol import Report
from gpusched.sim.setup import Setup
from scripts.kept import simulate_into
from tests.dashboard.scene import Scene, recorded


def test_what_the_best_trial_was_told_stands_in_the_summary(tmp_path: Path) -> None:
    """A checkpoint that holds nothing was sold as a model."""
    view = replace(recorded("finished"), folder=str(tmp_path))
    log = ExperimentPaths(tmp_path).trial(0).log(1, 0, "err")
    log.parent.mkdir(parents=True)
    log.write_text("noise\n 10%|#   | 1/9gpusched: nothing of this script is saved\n")
    assert "  note: nothing of this script is saved" in summary(view).splitlines()


def test_the_winner_and_where_it_lies() -> None:
    view = recorded("finished")
    assert summary(view).splitlines() == [
        "digits-0714-1532 is over (deadline) after 1 min 00 s: 26 trials (3 completed, 23 stopped)",
        "",
        "  accuracy         0.9963  (trial 0 at step 80, on 4 atoms)",
        "  lr               0.001345",
        "  width            64",
        "  optimizer.name   sgd",
        "  optimizer.decay  0.001",
        "  checkpoint       /data/runs/digits-0714-1532/best/checkpoint",
        "",
        "  gpusched best /data/runs/digits-0714-1532                   how to load the model",
        "  gpusched explain 0 /data/runs/digits-0714-1532              the trial's story",
        "  gpusched report /data/runs/digits-0714-1532                 plots of the whole search",
        "  gpusched resume /data/runs/digits-0714-1532 --deadline +1h  an hour more",
    ]
    assert "resume" not in summary(replace(view, ending="nothing left to run")), "it is refused"
    early = replace(view, ending="stopped by SIGTERM: a shutdown", time_left_s=9.0)
    assert "1532     continue, with" in summary(early)
    better = replace(view.trials[1], best_metric=0.999, best_step=7)
    behind = (
        f"Behind the best report, 0.9990 of trial {better.id} at step 7, which has no checkpoint."
    )
    assert behind in summary(replace(view, best_unsaved=better)).splitlines()


def test_no_trial_succeeded() -> None:
    scene = Scene(fails=(0, 1, 2), deadline_s=20, max_trials=3)
    # They reported a step before they failed, but nothing of it was saved.
    view = replace(scene.play().view(daemon_pid=None), best=None)
    told = summary(view)
    assert "model.\n3 trials failed; the first, trial 0 at step 1: ValueError" in told
    assert "error, trial 2 at step 1: ValueError: trial 2 cannot be: loss is negative\n" in told
    assert "'gpusched logs 0 /data/runs/digits-0714-1532' shows" in told


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ((), "No trial was started"),
        ((TrialRow(id=0, state="stopped"),), "give a longer --deadline"),
        ((TrialRow(id=0, state="stopped", step=3),), "No report of accuracy was a finite number"),
        ((TrialRow(id=0, state="stopped", step=3, best_metric=0.5),), "none saved a checkpoint"),
    ],
)
def test_why_there_is_no_model(trials: tuple[TrialRow, ...], told: str) -> None:
    counts = {"stopped": len(trials)}
    view = Standing(
        experiment="x", state="finished", metric="accuracy", trials=trials, trial_counts=counts
    )
    assert told in summary(view)


def test_a_search_that_a_person_ended_early_blames_nothing() -> None:
    view = Standing(experiment="x", state="finished", folder="/runs/x", time_left_s=9.0)
    view = replace(view, ending="stopped by the user")
    told = summary(view)
    assert "before a trial had reported" in told
    assert "--deadline" not in told
    assert "'gpusched resume /runs/x' continues" in told
    assert "resume" not in summary(replace(view, time_left_s=0.0))


@pytest.mark.parametrize("changes", [{}, {"best": None}])
def test_how_an_interrupted_search_continues_is_said_once_with_its_failure(changes: Any) -> None:
    told = summary(replace(Scene().play(10).view(daemon_pid=None), **changes))
    assert "was interrupted after" in told
    assert "resume" not in told
    assert "No trial" not in told


def test_a_winner_does_not_hide_that_others_failed() -> None:
    view = recorded("finished")
    broken = replace(view.trials[1], state="failed", error="ValueError: train.py:3: bad")
    told = summary(replace(view, trials=(view.trials[0], broken), trial_counts={"failed": 4}))
    assert f"4 trials failed; the first, trial {broken.id} at step" in told
    assert "train.py:3: bad" in told


# ---------------------------------------------------------------- status

FAILED = TrialRow(id=3, state="failed", step=2, error="rank 0: ValueError: train.py:4: bad")
VIEW = Standing(
    experiment="digits-1",
    folder="/runs/digits-1",
    state="finished",
    ending="the first 3 trials failed",
    policy="asha",
    metric="accuracy",
    atoms=AtomCounts(total=1, free=1),
    trials=(*(TrialRow(id=n, state="stopped") for n in range(4, 40)), FAILED),
    trial_counts={"stopped": 36, "failed": 3},
)


def test_why_it_ended_and_failed_stands_above_a_table_of_twenty() -> None:
    first, atoms, failures, _, head, *rows = lines(VIEW)
    assert first == "digits-1: finished (the first 3 trials failed), policy asha"
    assert atoms == "1 atom: 1 free"
    assert failures.startswith("3 trials failed; the first, trial 3 at step 2: rank 0: ValueError")
    assert head.startswith("trial  state")
    assert rows[-1] == "... and 19 more ('gpusched export /runs/digits-1 --trials' lists them)"


def test_all_of_them_and_a_search_that_runs() -> None:
    """Each error stands above the table, once; in the table the configuration says more."""
    again = replace(FAILED, id=42, hparams={"lr": 0.1})
    other = replace(FAILED, id=41, error="rank 1: killed by SIGSEGV", hparams={"lr": 0.2})
    retried = TrialRow(id=0, state="running", error="failed at step 2: x; continues from step 1")
    running = replace(VIEW, state="running", ending=None, time_left_s=75.0, daemon_pid=7)
    shown = (retried, *VIEW.trials[1:], again, other)
    running = replace(running, trials=shown, warnings=("a full disk",))
    running = replace(running, now_s=100.0, idle_atom_s={"no step fits": 25.0})
    hot = DeviceRow(id="GPU-1", label="GPU 0", state="held", notes=("slowed by heat",))
    told = lines(replace(running, notes=("R is 81",), devices=(hot,)), everything=True)
    assert told[0] == "digits-1: running, policy asha, 1 min 15 s left, daemon 7"
    assert told[3:5] == ["     25%  no step fits", "note: R is 81"]
    assert told[5:7] == ["note: a full disk", "note: GPU 0: slowed by heat"]
    assert told[7].startswith("3 trials failed; the first, trial 3 at step 2: rank 0: ValueError")
    assert told[8] == "  another error, trial 41 at step 2: rank 1: killed by SIGSEGV"
    assert told[9] == "trial 0 failed at step 2: x; continues from step 1"
    assert "more (--all" not in told[-1]
    *_, repeated, last = told[-1].splitlines()
    assert repeated.endswith("lr=0.1")
    assert last.endswith("lr=0.2")
    assert "\n".join(told).count("train.py:4: bad") == 1


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPaths:
    """A search of more trials than the 200 that a view has."""
    setup = Setup(deadline_s=30.0, atoms=4, policy="asha", options={"r": 1, "R": 2, "eta": 2.0})
    result, folder = simulate_into(tmp_path_factory.mktemp("crowd"), setup)
    assert result.trials > 230
    return ExperimentPaths(folder)


def test_an_export_has_every_trial_and_metric_and_a_table_says_how_many_it_leaves_out(
    crowd: ExperimentPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest was missing from the export, without a word."""
    view = session.view(crowd)
    folder, trials = crowd.root, sum(view["trial_counts"].values())
    monkeypatch.setattr(
        "gpusched.dashboard.view.METRICS", 0
    )  # of a script that reports more than a view has
    assert main(["export", str(folder), "--trials", "--json"]) == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert [row["trial"] for row in rows] == [*range(trials)]
    assert (view["metric"] in rows[0], "curve" in rows[0]) == (True, False)
    assert main(["status", str(folder), "--all"]) == 0
    more = f"... and {trials - 200} more ('gpusched export {folder} --trials' lists them)"
    assert capsys.readouterr().out.splitlines()[-1] == more


def test_following_logs_ends_with_a_trial_that_no_view_has_and_a_pipe_has_its_lines(
    crowd: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {trial["id"] for trial in session.view(crowd)["trials"]}
    number = next(n for n in crowd.trial_numbers if n not in seen)
    log = crowd.trial(number).log(1, 0, "out")
    log.parent.mkdir(parents=True)
    log.write_text("hel")
    monkeypatch.setattr("time.sleep", lambda _s: log.write_text("hello \x1b[32m✓\x1b[0m\n"))
    monkeypatch.setattr("gpusched.folder.find.has_daemon", lambda _paths: True)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe := io.BytesIO(), "ascii"))
    assert main(["logs", str(number), str(crowd.root), "-f", "--json"]) == 0
    assert json.loads(pipe.getvalue()) == {"rank": 0, "stream": "out", "line": "hello ?"}


def test_following_logs_on_a_terminal_has_a_progress_bar_in_one_line(
    crowd: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a line more each time that the log was read."""
    number = crowd.trial_numbers[-1]
    log = crowd.trial(number).log(1, 0, "err")
    log.parent.mkdir(parents=True)
    log.write_text(begun := "begun\n 10%|#\r 50%|##")
    texts = [begun + "\r 90%|###", begun + "\r100%|####\ndo", begun + "\r100%|####\ndone"]
    monkeypatch.setattr("time.sleep", lambda _s: log.write_text(texts.pop(0)))
    monkeypatch.setattr("gpusched.folder.find.has_daemon", lambda _paths: len(texts) > 1)
    monkeypatch.setattr("gpusched.cli.afterwards.FINAL", ())
    monkeypatch.setattr(sys, "stdout", screen := io.StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: True)
    assert main(["logs", str(number), str(crowd.root), "-f"]) == 0
    shown = ["begun\n", " 50%|##", " 90%|###", "100%|####\n", "do", "done\n", ""]
    assert screen.getvalue() == "".join(f"\r\x1b[K{text}" for text in shown)


def test_a_metric_that_is_called_as_a_column_of_the_export_has_a_longer_name() -> None:
    """Why a trial had failed was overwritten by the error that its script reports."""
    told = Timeline(devices=("gpu0",), until=9.0)
    steps = [ReportedStep(2.0, Report(1, 1, 7, 0.5, {"step": 90, "loss": 1.0}), 1.0)]
    launch = IncarnationTimeline(1, told.devices, 0.0, steps)
    told.trials[0] = TrialTimeline(0, {"lr": 0.1}, [launch])
    (row,) = records(told)
    assert (row["step"], row["metrics.step"], row["hparams.lr"]) == (7, 90, 0.1)
    row = _of_trial(FAILED, {"error": 0.05, "loss": 1.0})
    assert (row["error"], row["metrics.error"], row["loss"]) == (FAILED.error, 0.05, 1.0)


def test_an_export_of_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = simulate_into(tmp_path, Setup(deadline_s=0.05, atoms=1, policy="fifo"))
    monkeypatch.setattr("gpusched.cli.afterwards.records", lambda _told: ())
    assert main(["export", str(folder)]) == 0
    assert capsys.readouterr() == ("", f"{folder.name}: nothing was reported\n")

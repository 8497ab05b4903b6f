"""Failpoints that a search passes seldom, or that are not the daemon's: best/, the end, shims and ranks.

With ``test_daemon_kills.py`` every name in ``failpoints.py`` is died at.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpusched.folder.files import read_json
from tests.torture.bed import SCRIPTS, Bed, MakeBed
from tests.torture.failpoints import WORKER

BEST = ("KeepBest.before", "best.built", "best.renamed", "best.pointed", "KeepBest.after")
SHORT = {
    "devices": "cpu:2",
    "max_trials": 2,
    "space": {"x": {"uniform": [0, 1]}, "step_s": 0.03},
}
#: At which pass a shim or a rank dies; otherwise at the first.
PASS = {"report.written": 12, "report.answered": 12, "checkpoint.staged": 2}
NEVER_UP = "claim"
"""Every launch ends there, so the trial must fail, with the cause."""


def require_whole_best(bed: Bed) -> None:
    """``best/`` is not there yet, or all of it is."""
    if not bed.paths.best.exists():
        return
    facts = read_json(bed.paths.best / "metric.json")
    manifest = json.loads((bed.paths.best / "checkpoint" / "manifest.json").read_text())
    for name in manifest["files"]:
        assert (bed.paths.best / "checkpoint" / name).is_file()
    assert facts["step"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", BEST)
@pytest.mark.parametrize("count", [1, 2])
def test_killed_while_the_best_is_kept(make_bed: MakeBed, name: str, count: int) -> None:
    bed = make_bed(**SHORT, policy={"name": "fifo", "R": 100_000})
    assert "ok" in bed.start(failpoint=f"{name}:{count}")
    assert bed.wait_for_death() == -9, f"{name} was not reached\n{bed.log()}"
    require_whole_best(bed)
    bed.resume()
    bed.wait_for_reports(10)
    require_whole_best(bed)
    best = bed.finish().state.best
    kept = read_json(bed.paths.best / "metric.json")
    assert (kept["trial"], kept["step"]) == (best.trial, best.step)
    assert len(list(bed.paths.bests.iterdir())) == 1, "older ones go"


DYING_SERVER = """
import os, signal, time
from pathlib import Path
from gpusched import failpoints

def reach(name):
    if name == "claim.before":
        time.sleep(0.5)
    elif name == "server.forked":
        os.kill(os.getpid(), signal.SIGKILL)

died = Path(__file__).with_name("died")
if not died.exists():
    died.touch()
    failpoints.reach = reach
"""


def test_a_server_dies_before_it_says_whom_it_has_forked(make_bed: MakeBed, tmp_path: Path) -> None:
    """The launch is asked for again, and the second shim finds the claim of the first: that one is the trial's."""
    scripts = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    (scripts / "dying.py").write_text(DYING_SERVER)
    bed = make_bed(
        **SHORT | {"max_trials": 1},
        script=str(scripts / "load.py"),
        preload=["dying"],
        policy={"name": "fifo", "R": 120},
    )
    bed.begin()
    assert bed.wait_for_death() == 0, bed.log()
    assert "the warm server ended" in bed.log()
    (trial,) = bed.check_end().state.trials.values()
    assert (trial.incarnation, len(bed.lines(0))) == (1, 120), "nothing was begun anew"


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKER)
def test_shim_or_rank_dies_at_its_point(make_bed: MakeBed, tmp_path: Path, name: str) -> None:
    """In every incarnation: the trial gets on, or fails and says why; nothing is lost or told twice."""
    scripts = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    (scripts / "failpoint").write_text(f"{name}:{PASS.get(name, 1)}")
    bed = make_bed(
        **SHORT,
        script=str(scripts / "load.py"),
        preload=["armed"],
        policy={"name": "fifo", "R": 40},
    )
    bed.begin()
    assert bed.wait_for_death(180) in (0, 3), bed.log()
    again = bed.check_end()
    for trial in again.state.trials.values():
        print(f"{name}: trial {trial.id}: {trial.state.value}, {trial.incarnation} incarnations")
        if name.startswith(NEVER_UP):
            assert trial.state.value == "failed"
        elif name.startswith("exit"):
            assert trial.state.value == "completed"
        assert trial.state.value == "completed" or trial.error, "it says why"

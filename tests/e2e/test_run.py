"""The main job: run, look, get the best model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.sandbox import SCRIPTS, Sandbox, told
from tests.rig import PATIENCE_S, wait_until

SECRET = "open sesame"


def test_what_is_told_of_a_search_of_two_ranks_a_trial(sandbox: Sandbox) -> None:
    own = ["--data", "a set", "--at=${x}"]
    recipe = sandbox.recipe("good.py", policy={"name": "fifo", "R": 3}, sizes=[2], args=own)
    result = sandbox.gpusched("run", recipe, "--json")
    assert result.code == 0, result.text + sandbox.log()
    objects = [json.loads(line) for line in result.out.splitlines()]
    assert objects[0]["what"] == "began", "what was before anybody listened is told too"
    assert objects[-1]["over"] is True
    assert len(objects) > 4
    view = sandbox.call("status", "--json").json()
    assert [(t["state"], t["step"]) for t in view["trials"]] == [("completed", 3)] * 2
    assert "completed" in sandbox.call("status").out
    assert sandbox.call("ls", "--json").json()["experiment"] == view["experiment"]
    logs = sandbox.call("logs", "0").out
    assert "hello from rank 0 of 2" in logs
    assert "done" in logs
    both = sandbox.call("logs", "0", "--all").out
    assert "[0] hello from rank 0 of 2" in both
    assert "[1] hello from rank 1 of 2" in both
    story = sandbox.call("explain", "1").out
    assert "complete" in story
    assert "first launch" in story
    assert "checkpoint:" not in story, "of a trial that is over none need be left"
    x = sandbox.call("explain", "1", "--json").json()["hparams"]["x"]
    assert story.endswith(f"): --data 'a set' --at={x}\n"), "what the script's own parser takes"


@pytest.mark.parametrize("given", ["shell", "recipe"])
def test_a_relative_pythonpath_begins_at_the_users_folder(sandbox: Sandbox, given: str) -> None:
    """The daemon and the warm server have working directories of their own."""
    (sandbox.root / "shared.py").write_text("score = 1.0\n")
    script = sandbox.root / "sub" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "import gpusched, shared\nfrom gpusched import trial\ntrial.track()\ntrial.report(score=shared.score)\n"
    )
    keys = {"env": {"PYTHONPATH": "."}} if given == "recipe" else {}
    recipe = sandbox.recipe(str(script), cwd=str(sandbox.root), max_trials=1, **keys)
    paths = {"PYTHONPATH": "."} if given == "shell" else {}
    result = sandbox.gpusched("run", recipe, **paths)
    assert result.code == 0, result.text + sandbox.log()


def test_what_a_script_writes_elsewhere_is_as_open_as_the_user_wants(sandbox: Sandbox) -> None:
    """A data set in a shared cache, which colleagues could not read; in a working directory of the trial's own."""
    script = sandbox.root / "cache.py"
    script.write_text(
        "import gpusched, pathlib\ntrial = gpusched.init()\ntrial.track()\n"
        "assert pathlib.Path.cwd() == trial.folder\n"
        "pathlib.Path(__file__).with_name('cached').touch()\ntrial.report(score=1.0)\n"
    )
    recipe = sandbox.recipe(str(script), max_trials=1, devices="cpu:1", cwd="private")
    before = os.umask(0o027)
    try:
        assert sandbox.gpusched("run", recipe).code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((sandbox.root / "cached").stat().st_mode) == 0o640
    nobody_else_can_look(sandbox)


def test_a_daemon_that_ends_at_once_says_why(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is gone with the folder of a search that never began."""
    python = sandbox.root / "python"
    python.write_text("#!/bin/sh\necho No module named gpusched >&2\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    result = sandbox.call("run", sandbox.recipe("good.py"))
    assert result.code == 1
    assert "the daemon ended at once (exit code 1): No module named gpusched" in result.err


def test_a_search_that_is_over_before_anybody_listens(sandbox: Sandbox) -> None:
    result = sandbox.gpusched("run", sandbox.recipe("good.py", deadline=0.001))
    assert result.code == 3
    assert "is over (deadline)" in result.out
    assert "detached" not in result.text


def test_ctrl_c_before_there_is_anything_to_stop(sandbox: Sandbox) -> None:
    process = sandbox.start("run", sandbox.recipe("good.py", policy={"name": "fifo", "R": 100000}))
    wait_until(lambda: [*sandbox.runs.glob("*/daemon.log")], "a daemon")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) in (130, 0), "0 if there was a model by then"
    assert not [*sandbox.runs.glob("*/daemon.sock")], "its daemon has ended too"


def test_a_reader_that_ends_with_ctrl_c_leaves_word_of_the_search(sandbox: Sandbox) -> None:
    """``run | tee log``: the first Ctrl-C ends tee as well, and the command left without a word."""
    process = sandbox.start("run", sandbox.recipe("good.py", policy={"name": "fifo", "R": 100000}))
    assert process.stdout is not None
    for _ in range(2):  # the second line is of the search: Ctrl-C is its by then
        process.stdout.readline()
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    told(process, "nothing reads the output any more; 'gpusched watch' shows it")
    process.wait(PATIENCE_S)
    sandbox.call("stop")


def nobody_else_can_look(sandbox: Sandbox) -> None:
    seen = 0
    for path in sandbox.files():
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            assert stat.S_ISLNK(mode) or not mode & (stat.S_IRWXG | stat.S_IRWXO), path
            seen += 1
    assert seen > 10


def test_detach_and_come_back(sandbox: Sandbox, tmp_path: Path) -> None:
    script = Path(shutil.copy(SCRIPTS / "good.py", tmp_path))
    recipe = sandbox.recipe(str(script), policy={"name": "fifo", "R": 100000})
    started = sandbox.gpusched("run", recipe, "--detach", "--json").json()
    assert started["daemon_pid"] == sandbox.daemon()
    sandbox.wait_for(lambda view: all(t["step"] > 2 for t in view["trials"]))
    nobody_else_can_look(sandbox)
    assert not sandbox.view()["warnings"]
    refused = sandbox.gpusched("resume")
    assert (refused.code, str(sandbox.daemon()) in refused.err) == (2, True)
    os.kill(sandbox.daemon(), signal.SIGHUP)  # a closed terminal ends nothing
    script.write_text(f"{script.read_text()}# another\n")
    sandbox.wait_for(lambda view: any("train the new code" in text for text in view["warnings"]))
    script.write_text(f"{script.read_text()}# and another\n")
    wait_until(lambda: sandbox.log().count("train the new code") > 1, "word of the second edit")
    assert sum("train the new code" in text for text in sandbox.view()["warnings"]) == 1
    assert f"{sandbox.experiment.name}: trial 1 pauses" in sandbox.call("pause", "1").out
    sandbox.wait_for(lambda view: {t["id"]: t["state"] for t in view["trials"]}[1] == "paused")
    assert sandbox.call("unpause", "1").code == 0
    sandbox.wait_for(lambda view: {t["id"]: t["state"] for t in view["trials"]}[1] == "running")
    assert sandbox.call("deadline", "+1h", "--json").json()["time_left_s"] > 3600
    assert sandbox.view()["deadline_s"] == pytest.approx(4600, abs=1)
    assert sandbox.call("stop", "--trial", "1").code == 0
    sandbox.wait_for(lambda view: {t["id"]: t["state"] for t in view["trials"]}[1] == "stopped")
    assert sandbox.call("logs", "1", "-f").code == 0, "its trial is over, the search is not"
    assert "is asked to stop; every trial leaves at its next step" in sandbox.call("stop").err
    assert sandbox.view()["state"] != "running"


def test_a_secret_of_the_environment_is_not_on_the_disk_and_is_asked_for_at_a_resume(
    sandbox: Sandbox,
) -> None:
    script = sandbox.root / "secret.py"
    script.write_text(
        "import gpusched, os, time\nright = float(os.environ['GT_SECRET'] == 'open sesame')\n"
        "assert os.environ['GT_ROOT'] == '/data'\n"
        "trial = gpusched.init()\ntrial.track()\nfor step in trial.steps():\n    time.sleep(0.02)\n"
        "    trial.report(score=right + step)\n"
    )
    endless = {"name": "fifo", "R": 100000}
    recipe = sandbox.recipe(str(script), env={"GT_SECRET": None}, policy=endless, max_trials=1)
    refused = sandbox.gpusched("run", recipe, "--detach")
    assert (refused.code, "env: no value for GT_SECRET" in refused.err) == (2, True)
    assert sandbox.gpusched("run", recipe, "--detach", GT_SECRET=SECRET, GT_ROOT="/data").code == 0
    sandbox.wait_for(lambda view: view["trials"] and view["trials"][0]["step"] > 3)
    for file in sandbox.files():
        with suppress(FileNotFoundError):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    sandbox.kill_everything()
    name = sandbox.experiment.name
    begun_anew = f"note: {name} was interrupted: 'gpusched resume {name}' continues it\n"
    assert begun_anew in sandbox.gpusched("run", recipe, "--detach").err
    refused = sandbox.gpusched("resume", "--detach")
    assert (refused.code, "env: no value for GT_SECRET" in refused.err) == (2, True)
    # As from cron: without GT_ROOT.
    resumed = sandbox.gpusched("resume", "--detach", GT_SECRET=SECRET)
    assert (resumed.code, "not set here: GT_ROOT" in resumed.err) == (0, True), resumed.text
    sandbox.wait_for(
        lambda view: (t := view["trials"][0])["state"] == "running" and t["incarnation"] == 2
    )
    assert sandbox.view()["trials"][0]["metric"] >= 1
    assert sandbox.call("cancel").code == 0

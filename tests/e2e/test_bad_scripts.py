"""Mistakes of a training script: one clear message, the right exit code, nothing else suffers."""

from __future__ import annotations

import re

from tests.e2e.sandbox import Sandbox

#: fault -> what the user must be told
FAULTS = {
    "before the loop": ": the data set is missing",
    "silent": "without a report",
    "exit code": "7",
    "segfault": "SIGSEGV at bad.py:",
    "text": "score",
    "nothing": "score",
    "other metric": "'score'",
    "10 MB": "report",
    "step 3 on rank 1": "rank 1: ValueError: bad.py:",
    "GPU memory": "out of GPU memory on 2 atoms",
    "memory": "out of the machine's memory",
}


def test_every_fault_is_told_in_its_own_words(sandbox: Sandbox) -> None:
    """And "not a number" is no fault: such a metric ranks worst, and ends nothing.

    A remark that holds of several trials is told once, also without a dashboard.
    """
    faults = [*FAULTS, "nan", "inf", "none"]
    recipe = sandbox.recipe(
        "bad.py",
        space={"fault": {"choice": faults}},
        sampler="grid",
        policy={"name": "fifo", "R": 10},
        sizes=[2],
        devices="cpu:4",
        max_trials=len(faults),
        max_failures=len(faults),
        preload=None,
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    trials = {trial["hparams"]["fault"]: trial for trial in sandbox.view()["trials"]}
    told = {fault: trials[fault]["error"] or "" for fault in FAULTS}
    assert [fault for fault, words in FAULTS.items() if words not in told[fault]] == [], told
    assert {trials[fault]["state"] for fault in FAULTS} == {"failed"}
    assert {trials[fault]["step"] for fault in ("nan", "inf", "none")} == {10}
    assert sandbox.call("best", "--json").json()["hparams"]["fault"] == "none"
    assert "\x1b" not in sandbox.call("explain", str(trials["before the loop"]["id"])).text


def test_a_script_that_fails_continues_from_its_checkpoint(sandbox: Sandbox) -> None:
    """And once: an error that comes again at its step fails the trial."""
    recipe = sandbox.recipe(
        "hiccup.py",
        space={"fault": {"choice": ["once", "always"]}},
        sampler="grid",
        policy={"name": "fifo", "R": 100000},
        save_every="0.1s",
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    once, always = sorted(sandbox.view()["trials"], key=lambda trial: trial["state"])
    assert [trial["incarnation"] for trial in (once, always)] == [2, 2]
    assert (once["state"], once["error"], always["state"]) == ("completed", None, "failed")
    assert "OSError: hiccup.py:" in always["error"]
    told = r"trial \d: failed at step \d+: rank 0: OSError: .* handle; continues from step \d"
    assert len(re.findall(told, result.text)) == 2, result.text
    assert ": failed at step " in sandbox.call("explain", str(once["id"])).out


def test_the_deadline_holds_whatever_a_trial_does(sandbox: Sandbox) -> None:
    faults = ["hangs", "ignores SIGTERM", "stopped", "grandchildren", "none"]
    recipe = sandbox.recipe(
        "bad.py",
        space={"fault": {"choice": faults}},
        sampler="grid",
        policy={"name": "fifo", "R": 100000},
        devices="cpu:5",
        max_trials=5,
        deadline="1h",
    )
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    # All have come to their loops, however long that takes; then the hour is over.
    sandbox.wait_for(lambda view: [trial["step"] > 0 for trial in view["trials"]] == [True] * 5)
    assert sandbox.call("deadline", "1s").code == 0
    result = sandbox.call("watch")
    assert result.code == 0, result.text + sandbox.log()
    view = sandbox.view()
    assert view["ending"] == "deadline"
    assert view["deadline_s"] - 1 <= view["now_s"]
    # That nothing is left of it, the fixture asserts.

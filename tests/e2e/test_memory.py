"""A trial that runs out of memory fails with its size; its configuration is not tried again, the others train on."""

from __future__ import annotations

from tests.e2e.sandbox import Sandbox


def test_out_of_memory(sandbox: Sandbox) -> None:
    space = {"batch": {"choice": [64, 4096]}, "memory": {"choice": ["gpu", "host"]}}
    recipe = sandbox.recipe("greedy.py", space=space, repeats=10, max_trials=10, devices="cpu:1")
    result = sandbox.gpusched("run", recipe, "--seed", "3")
    assert result.code == 0, result.text + sandbox.log()
    trials = sandbox.view()["trials"]
    failed = [trial for trial in trials if trial["state"] == "failed"]
    errors = {trial["hparams"]["memory"]: trial["error"] for trial in failed}
    assert len(failed) == 2, trials
    assert errors["gpu"].startswith(
        "out of GPU memory: 20.00 GiB wanted, 3.25 GiB free of 79.10 GiB on 1 atom with batch=4096"
    )
    assert errors["host"].startswith("out of the machine's memory: 4194304.00 GiB wanted of ")
    others = [trial for trial in trials if trial["state"] == "completed"]
    assert len(others) == 8
    assert {trial["hparams"]["batch"] for trial in others} == {64}
    explained = sandbox.gpusched("explain", str(failed[0]["id"])).text
    assert "this configuration is not tried again" in explained

"""A trial that runs out of memory is tried on more atoms where its batch is split, else fails with its size."""

from __future__ import annotations

from tests.e2e.sandbox import Sandbox


def test_out_of_memory(sandbox: Sandbox) -> None:
    """What fits on two atoms goes on with them; what fits on none fails, and its configuration is not tried again."""
    space = {"batch": {"choice": [64, 4096]}, "memory": {"choice": ["gpu", "host", "share"]}}
    size = {
        "devices": "cpu:2",
        "max_atoms": 2,
        "batch": "global",
        "policy": {"name": "fifo", "R": 2},
    }
    recipe = sandbox.recipe("greedy.py", space=space, repeats=10, max_trials=12, **size)
    result = sandbox.gpusched("run", recipe, "--seed", "3")
    assert result.code == 0, result.text + sandbox.log()
    trials = sandbox.view()["trials"]
    failed = {trial["hparams"]["memory"]: trial for trial in trials if trial["state"] == "failed"}
    assert set(failed) == {"gpu", "host"}, trials
    assert failed["gpu"]["error"].startswith(
        "out of GPU memory: 20.00 GiB wanted, 3.25 GiB free of 79.10 GiB on 2 atoms with batch=4096"
    )
    assert failed["host"]["error"].startswith(
        "out of the machine's memory: 4194304.00 GiB wanted of "
    )
    large = [trial for trial in trials if trial["hparams"]["batch"] == 4096]
    shares = [trial for trial in large if trial["hparams"]["memory"] == "share"]
    assert shares
    assert {trial["state"] for trial in shares} == {"completed"}
    assert len(large) - len(shares) == 2
    explained = sandbox.gpusched("explain", str(failed["gpu"]["id"])).text
    assert "this configuration is not tried again" in explained
    explained = sandbox.gpusched("explain", str(shares[0]["id"])).text
    assert "needs 2 atoms: it ran out of memory on fewer" in explained

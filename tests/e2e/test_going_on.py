"""A search that is over goes on, a configuration is tried: the story of one search."""

from __future__ import annotations

import json

from tests.e2e.sandbox import Sandbox


def test_a_search_goes_on_after_each_of_its_ends(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe("good.py", policy={"name": "fifo", "R": 100_000}, max_trials=1)
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["trials"] and view["trials"][0]["step"] >= 2)
    name = sandbox.experiment.name

    refused = sandbox.call("try", "x=7")
    assert (refused.code, "x 7 is outside the space (0 to 1)" in refused.err) == (2, True)
    tried = sandbox.call("try", "x=7", "--outside", "--json").json()
    assert tried == {"experiment": name, "hparams": {"x": 7}, "before": 0}
    assert sandbox.call("try", "x=0.5", name).code == 0
    # A trial that is stopped before its first step has nothing to continue from, and stays stopped.
    sandbox.wait_for(lambda view: sum(trial["step"] >= 1 for trial in view["trials"]) == 2)
    assert sandbox.call("stop").code == 0
    first = sandbox.view()

    # Without another limit: it was stopped before its deadline. The configuration that waited is not forgotten.
    went_on = sandbox.gpusched("resume", "--max-trials", "1", "--detach")
    assert went_on.code == 0, went_on.text
    sandbox.wait_for(lambda view: all(t["step"] > 2 for t in view["trials"][:2]))
    assert sandbox.call("stop", "--trial", "1").code == 0
    # A trial that was stopped for good does not go on, also where its model is the best.
    sandbox.wait_for(lambda view: len(view["trials"]) == 3 and view["best"]["trial"] != 1)
    hparams = json.loads((sandbox.experiment / "trials/0001/hparams.json").read_text())
    assert hparams["hparams"] == {"x": 7}
    assert sandbox.call("cancel").code == 0
    second = sandbox.view()
    steps = {trial["id"]: trial["step"] for trial in second["trials"]}
    assert all(steps[trial["id"]] >= trial["step"] for trial in first["trials"])

    assert "after which 'gpusched resume' continues none" in sandbox.call("gc").out
    reached = sandbox.gpusched("resume", "--target", "-5")
    assert (reached.code, "has reached the target -5" in reached.err) == (2, True)
    on = sandbox.gpusched("resume", "--deadline", "+50s", "--target", "1e9", "--detach")
    assert on.code == 0, on.text
    best = second["best"]["trial"]
    sandbox.wait_for(
        lambda view: any(t["id"] == best and t["step"] > steps[best] for t in view["trials"])
    )
    assert sandbox.call("stop").code == 0
    rows = sandbox.call("export", "--trials", "--json").out.splitlines()
    assert [json.loads(row)["trial"] for row in rows] == [0, 1, 2]
    code = sandbox.call("best", "--json").json()["code"]
    assert "torch" in code["packages"]

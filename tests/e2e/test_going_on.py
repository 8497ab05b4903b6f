"""A search that is over goes on, a configuration is tried, a trial is trained again: the story of one search."""

from __future__ import annotations

import json
import signal

from tests.e2e.sandbox import Sandbox, told
from tests.rig import PATIENCE_S, wait_until


def test_a_search_goes_on_after_each_of_its_ends(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe("good.py", policy={"name": "fifo", "R": 100_000}, max_trials=1)
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["trials"] and view["trials"][0]["step"] >= 2)
    name = sandbox.experiment.name

    refused = sandbox.gpusched("try", "x=7")
    assert (refused.code, "x 7 is outside the space (0 to 1)" in refused.err) == (2, True)
    tried = sandbox.gpusched("try", "x=7", "--outside", "--seed", "5", "--json").json()
    assert tried == {"experiment": name, "hparams": {"x": 7}, "before": 0}
    assert sandbox.gpusched("rerun", "0", name, "--set", "x=0.25").code == 0
    sandbox.wait_for(lambda view: view["trials"] and len(view["trials"]) == 2)
    assert sandbox.gpusched("stop").code == 0
    first = sandbox.view()

    # Without another limit: it was stopped before its deadline. The configuration that waited is not forgotten.
    went_on = sandbox.gpusched("resume", "--max-trials", "1", "--detach")
    assert went_on.code == 0, went_on.text
    sandbox.wait_for(lambda view: all(t["step"] > 2 for t in view["trials"][:2]))
    assert sandbox.gpusched("stop", "--trial", "1").code == 0
    # A trial that was stopped for good does not go on, also where its model is the best.
    sandbox.wait_for(lambda view: len(view["trials"]) == 3 and view["best"]["trial"] != 1)
    hparams = json.loads((sandbox.experiment / "trials/0001/hparams.json").read_text())
    assert (hparams["seed"], hparams["hparams"]) == (5, {"x": 7})
    assert sandbox.gpusched("cancel").code == 0
    second = sandbox.view()
    steps = {trial["id"]: trial["step"] for trial in second["trials"]}
    assert all(steps[trial["id"]] >= trial["step"] for trial in first["trials"])

    # Its checkpoints are gone, but the best model's, which its trial goes on from.
    assert sandbox.gpusched("gc").code == 0
    reached = sandbox.gpusched("resume", "--target", "-5")
    assert (reached.code, "has reached the target -5" in reached.err) == (2, True)
    on = sandbox.gpusched("resume", "--deadline", "+50s", "--target", "1e9", "--detach")
    assert on.code == 0, on.text
    best = second["best"]["trial"]
    sandbox.wait_for(
        lambda view: any(t["id"] == best and t["step"] > steps[best] for t in view["trials"])
    )
    assert sandbox.gpusched("stop").code == 0
    rows = sandbox.gpusched("export", "--trials", "--json").out.splitlines()
    assert [json.loads(row)["trial"] for row in rows] == [0, 1, 2]
    code = sandbox.gpusched("best", "--json").json()["code"]
    assert "torch" in code["packages"]
    again = sandbox.gpusched("run", recipe, "--set", "max_trials=1", "--deadline", "1s")
    assert f"'gpusched resume {name}'" in again.err


def test_a_search_goes_on_after_ctrl_c_once_and_twice_and_after_a_death_while_it_ends(
    sandbox: Sandbox,
) -> None:
    space = {
        "x": {"uniform": [0, 1]},
        "step_s": 1,
    }  # time for a second Ctrl-C before the trial leaves
    recipe = sandbox.recipe(
        "counted.py", policy={"name": "fifo", "R": 100_000}, max_trials=1, space=space
    )
    command: list[object] = ["run", recipe]
    step = 0
    for presses in (1, 2):
        process = sandbox.start(*map(str, command))
        sandbox.wait_for(
            lambda view, far=step + 2: view["trials"] and view["trials"][0]["step"] >= far
        )
        said = ""
        for word in ("stopping: ", "terminating the trials ")[:presses]:
            process.send_signal(signal.SIGINT)
            said += told(process, word)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert "Ctrl-C again" in said, said
        assert "Traceback" not in err
        assert ("terminating" in said + err) == (presses == 2)
        view = sandbox.view()
        assert (view["state"], view["ending"]) == ("finished", "stopped by the user")
        step = view["trials"][0]["step"]
        command = ["resume", "--deadline", "+60s"]

    # counted.py asserts that its state goes on where its checkpoint was.
    started = sandbox.start(
        "resume", "--deadline", "+60s", "--detach", GPUSCHED_FAILPOINT="final.before"
    )
    assert started.wait(PATIENCE_S) == 0
    sandbox.wait_for(lambda view: view["trials"][0]["step"] > step)
    sandbox.gpusched("stop", "--no-wait")
    wait_until(lambda: "interrupted" in sandbox.gpusched("ls").out, "the daemon's death at its end")
    assert sandbox.gpusched("resume", "--deadline", "+60s", "--detach").code == 0
    further = sandbox.view()["trials"][0]["step"]
    sandbox.wait_for(lambda view: view["trials"][0]["step"] > further)
    assert sandbox.gpusched("stop").code == 0

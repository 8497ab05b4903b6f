"""The daemon dies, is resumed, and nothing is lost; signals mean what the README says."""

from __future__ import annotations

import json
import re
import signal

import psutil

from gpusched.core.events import UserAsked
from gpusched.daemon.session import Client
from tests.e2e.sandbox import PLENTY_S, Sandbox, told
from tests.rig import PATIENCE_S, wait_until

ENDLESS = {"name": "fifo", "R": 100000}


def _let_pass(sandbox: Sandbox, seconds: float) -> None:
    """As if the experiment had begun so much earlier; only while no daemon lives."""
    paths = sandbox.paths
    began = json.loads(paths.began.read_text())
    moved = {k: v - seconds if isinstance(v, int | float) else v for k, v in began.items()}
    paths.began.write_text(json.dumps(moved))


def test_trials_go_on_without_a_daemon_and_are_adopted(sandbox: Sandbox) -> None:
    attached = sandbox.start("run", sandbox.recipe("counted.py", policy=ENDLESS))
    sandbox.wait_for(lambda view: view["trials"] and all(t["step"] > 3 for t in view["trials"]))
    before = {t["id"]: t["incarnation"] for t in sandbox.view()["trials"]}
    sandbox.kill_daemon()
    _, err = attached.communicate(timeout=PATIENCE_S)
    name = sandbox.experiment.name
    assert attached.returncode == 1, err
    assert err.startswith(f"gpusched: {name}: the daemon ended without a word; it may have been")
    assert f"'gpusched resume {name}'" in err
    steps = len(sandbox.lines(0))
    wait_until(lambda: len(sandbox.lines(0)) > steps + 5, "more reports")
    assert "interrupted" in sandbox.call("ls").out
    told = sandbox.call("status").out.splitlines()
    assert told[1].startswith(f"{name}: the daemon ended without a word")
    assert f"'gpusched resume {name}' continues" in told[2]
    assert sandbox.call("status", "--json").json()["failure"].splitlines() == told[1:3]
    assert sandbox.gpusched("resume", "--detach").code == 0
    view = sandbox.wait_for(lambda view: all(t["step"] > steps + 30 for t in view["trials"]))
    assert {t["id"]: t["incarnation"] for t in view["trials"]} == before
    # And the deadline passes while nobody is there.
    sandbox.kill_daemon()
    _let_pass(sandbox, 2 * PLENTY_S)
    result = sandbox.gpusched("resume")
    assert result.code == 0, result.text + sandbox.log()
    assert sandbox.view()["ending"] == "deadline"
    for trial in (0, 1):
        numbers = [report["n"] for report in sandbox.lines(trial)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert {t["id"]: t["step"] for t in sandbox.view()["trials"]}[trial] == len(numbers)


def test_what_died_with_the_machine_goes_on_from_a_checkpoint_of_save_every(
    sandbox: Sandbox,
) -> None:
    # Never better than at first: saved by time alone.
    space = {"x": {"uniform": [0, 1]}, "sign": -1}
    recipe = sandbox.recipe("counted.py", policy=ENDLESS, save_every="1s", space=space)
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["trials"] and all(t["step"] > 3 for t in view["trials"]))
    # Saves that take long are asked for less often than every second, so the disk decides when this is.
    trials = [sandbox.paths.trial(number) for number in (0, 1)]
    wait_until(lambda: min(one.newest_checkpoint() for one in trials) > 1, "a second save")
    said = sandbox.call("explain", "0").out
    assert re.search(r"  checkpoint: of step \d+, \d+ steps? behind\n", said), said
    sandbox.kill_everything()
    assert sandbox.gpusched("resume", "--detach").code == 0
    # counted.py asserts that the state continues where the checkpoint was.
    sandbox.wait_for(
        lambda view: all(t["incarnation"] == 2 and t["step"] > 5 for t in view["trials"])
    )
    assert sandbox.call("stop").code == 0
    assert {t["state"] for t in sandbox.view()["trials"]} == {"stopped"}


def test_ctrl_c_three_times(sandbox: Sandbox) -> None:
    """Once and twice: ``test_going_on``."""
    recipe = sandbox.recipe("good.py", policy=ENDLESS, space={"x": 1, "step_s": 600.0})
    process = sandbox.start("run", recipe)
    sandbox.wait_for(
        lambda view: view["trials"] and all(t["state"] == "running" for t in view["trials"])
    )
    said = ""
    for word in ("stopping", "terminating", "killing"):
        process.send_signal(signal.SIGINT)
        said += told(process, word)
    out, err = process.communicate(timeout=PATIENCE_S)
    err = said + err
    assert "Traceback" not in out + err
    assert process.returncode in (0, 130)


def test_signals_and_requests_count_in_the_order_in_which_they_arrived(sandbox: Sandbox) -> None:
    """Of a search of one trial that does not leave by itself."""
    space = {"fault": "ignores SIGTERM"}
    recipe = sandbox.recipe("bad.py", space=space, max_trials=1, devices="cpu:1")
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["trials"] and view["trials"][0]["step"] == 1)
    daemon = psutil.Process(sandbox.daemon())
    line = Client.connect(sandbox.paths.socket)
    assert line is not None
    with line:
        line.ask("view")  # the daemon has taken the connection: a later request is read in one turn
        daemon.suspend()
        wait_until(lambda: daemon.status() == psutil.STATUS_STOPPED, "a stopped daemon")
        daemon.send_signal(signal.SIGTERM)
        daemon.send_signal(signal.SIGINT)
        line.send("kill")
        daemon.resume()
        assert line.receive()
    wait_until(sandbox.paths.final_view.exists, "the end")
    events = [entry.event for entry in sandbox.entries()]
    asked = [event.verb for event in events if isinstance(event, UserAsked)]
    assert asked == ["stop", "cancel", "kill"]
    assert sandbox.view()["ending"].startswith("stopped by SIG")


def test_a_search_that_dies_after_its_deadline_is_over_when_resumed(sandbox: Sandbox) -> None:
    """``resume`` failed with what to add to go on, and left no end that ``ls`` knew of."""
    recipe = sandbox.recipe("bad.py", space={"fault": "ignores SIGTERM"}, max_trials=1)
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["best"] is not None)
    assert sandbox.call("deadline", "0.1s").code == 0
    sandbox.wait_for(lambda view: view["state"] == "stopping")  # until it is killed
    sandbox.kill_everything()
    resumed = sandbox.gpusched("resume")
    assert (resumed.code, "is over (deadline)" in resumed.out) == (0, True), resumed.text
    assert sandbox.call("ls", "--json").json()["state"] == "finished"

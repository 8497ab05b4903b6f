"""The command line on a cluster, whose nodes are processes of this machine."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from gpusched.executors.cluster.line import home_of
from gpusched.folder.find import has_daemon
from gpusched.folder.lock import Lock
from gpusched.folder.paths import ExperimentPaths
from tests.e2e.sandbox import Sandbox
from tests.rig import marked, wait_until


def test_more_atoms_than_the_largest_node_has_are_refused_and_the_nodes_let_go(
    sandbox: Sandbox,
) -> None:
    """The nodes' processes end at once, and keep nothing reserved."""
    (disk := sandbox.root / "tmp").mkdir()
    recipe = sandbox.recipe("good.py", devices="auto", sizes=[3])
    places = {"TMPDIR": str(disk), "GPUSCHED_JOURNALS": str(disk)}
    refused = sandbox.gpusched("run", recipe, "--cluster", "local:2x2", **places)
    assert refused.code == 2
    assert refused.err.endswith(
        "gpusched: sizes: the smallest trial has 3 atoms; a trial runs on one node, and the largest has 2: "
        "add a smaller size\n"
    )
    (homes,) = disk.glob("gpusched-*")
    assert not [*homes.iterdir()]
    assert not [*sandbox.runs.iterdir()], "nor a search that was interrupted"
    ours = str(sandbox.root)
    assert not [p.pid for p in psutil.process_iter(["cmdline"]) if ours in str(p.info["cmdline"])]


def test_a_resume_without_a_node_begins_its_trials_elsewhere(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost node's trial was never heard of again, and the search never ended; stop and cancel did not return."""
    (disk := sandbox.root / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    places = {"TMPDIR": str(disk), "GPUSCHED_JOURNALS": str(disk)}
    steps = 40
    recipe = sandbox.recipe(
        "good.py",
        devices="cpu:1",
        node_patience="6s",  # a busy machine may keep a node silent for seconds
        save_every="1s",
        policy={"name": "fifo", "R": steps},
        try_first=[{"x": 0.5, "step_s": 0.05}] * 2,
        space={"x": {"uniform": [0, 1]}, "step_s": {"uniform": [0, 1]}},
    )
    begun = sandbox.gpusched("run", recipe, "--cluster", "local:2x1", "--detach", **places)
    assert begun.code == 0, begun.text
    sandbox.wait_for(lambda view: [trial["step"] > 5 for trial in view["trials"]] == [True, True])
    sandbox.kill_daemon()
    home = home_of(sandbox.experiment, "node1")
    ours = {str(sandbox.experiment), "node1"}
    nodes = [
        p.pid for p in psutil.process_iter(["cmdline"]) if ours <= {*(p.info["cmdline"] or [])}
    ]
    for pid in [*nodes, *marked(home)]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not has_daemon(ExperimentPaths(home)))
    lock = Lock.take(ExperimentPaths(home).lock)  # its machine does not come back
    resumed = sandbox.gpusched("resume", **places)
    assert resumed.code == 0, resumed.text
    lock.release()
    launches = [
        trial["incarnation"] for trial in json.loads(sandbox.paths.final_view.read_text())["trials"]
    ]
    assert sorted(launches) == [1, 2]
    for number in (0, 1):
        assert max(row["k"] for row in sandbox.lines(number)) == steps

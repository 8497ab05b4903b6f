"""A live search whose disk is really full for a while: trials train on, it is said, and it ends as it should."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.sandbox import Sandbox
from tests.journal_samples import ROOT

PROGRAM = "import sys; from tests.e2e.test_full_disk import play; play(*sys.argv[1:])"


def play(disk: str, own: str, ends: str, *cluster: str) -> None:
    """Run a search on this small disk; in a namespace, by ``PROGRAM``."""
    sandbox, ballast = Sandbox(Path(disk)), Path(disk) / "ballast"

    def ours() -> list[psutil.Process]:
        found = map(psutil.Process, sandbox.processes())
        return [one for one in found if not any(PROGRAM in word for word in one.cmdline())]

    def fill(piece: bytes) -> None:
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(piece):
                pass

    try:
        recipe = sandbox.recipe(
            "counted.py",
            space={"x": {"uniform": [0, 1]}, "says": "x" * 2000},
            policy={"name": "fifo", "R": 100000},
            max_trials=3,
            devices="cpu:1" if cluster else "cpu:2",
        )
        words = ("run", recipe, "--detach", *cluster)
        started = sandbox.gpusched(*words, TMPDIR=own, GPUSCHED_JOURNALS=own)
        assert started.code == 0, started.text
        sandbox.wait_for(
            lambda view: len(view["trials"]) == 2 and all(t["step"] > 5 for t in view["trials"])
        )
        fill(b"x" * 4096)
        view = sandbox.wait_for(
            lambda view: any("MiB free on the disk" in text for text in view["warnings"])
        )
        steps = {t["id"]: t["step"] for t in view["trials"]}
        view = sandbox.wait_for(
            lambda view: all(t["step"] > steps[t["id"]] + 20 for t in view["trials"])
        )
        assert {t["state"] for t in view["trials"]} == {"running"}, view
        asked = sandbox.gpusched("status")
        assert asked.code == 0, asked.text
        if ends == "killed":
            while not any("cannot be written" in text for text in sandbox.view()["warnings"]):
                fill(b"x" * 512)  # the journal's reserve as well
                time.sleep(0.1)
            daemon, running = psutil.Process(sandbox.view()["daemon_pid"]), ours()
            assert len(running) >= 5, "a daemon, two shims and two ranks"
            for _ in range(3):
                daemon.send_signal(signal.SIGINT)
                time.sleep(0.5)
            _, alive = psutil.wait_procs(running, timeout=60)
            assert not alive, alive
            return
        ballast.unlink()
        sandbox.wait_for(lambda view: not any("MiB free" in text for text in view["warnings"]))
        stopped = sandbox.gpusched("stop")
        assert stopped.code == 0, stopped.text
        best = sandbox.gpusched("best", "--json")
        assert best.code == 0, best.text
        for trial in sandbox.view()["trials"]:
            numbers = []
            for line in sandbox.paths.trial(trial["id"]).reports.read_text().splitlines():
                with suppress(ValueError):  # a line for which there was no room ends anywhere
                    numbers.append(json.loads(line)["n"])
            assert numbers == sorted(set(numbers)), "none twice"
            assert numbers[-1] == trial["step"], "the last are there"
        assert "there is room on the disk again" in sandbox.log()
        assert not [line for line in sandbox.log().splitlines() if "is given up" in line]
        fill(b"x" * 4096)
        freed = sandbox.gpusched("gc", "--yes")
        assert (freed.code, "removed" in freed.out) == (0, True), freed.text
    finally:
        for process in ours():
            process.kill()


def in_a_namespace(*command: str | Path) -> subprocess.CompletedProcess[str]:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    return subprocess.run([*unshare, *command], cwd=ROOT, capture_output=True, text=True)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return in_a_namespace("mount", "-t", "tmpfs", "tmpfs", "/mnt").returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="no user namespaces here: a small disk cannot be made")
@pytest.mark.parametrize(
    "how", ["stopped", "stopped --cluster local:2", "killed"], ids=["", "cluster", "killed"]
)
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, how: str) -> None:
    """``--cluster``: the folder that all nodes share is full, what they have of their own is elsewhere.

    ``killed``: the disk stays full, and the third Ctrl-C ends every process all the same.
    """
    for name in ("disk", "own"):
        (tmp_path / name).mkdir()
    mount = f"mount -t tmpfs -o size=128m tmpfs {tmp_path}/disk"
    words = (sys.executable, "-c", PROGRAM, tmp_path / "disk", tmp_path / "own", *how.split())
    done = in_a_namespace("sh", "-c", f'{mount} && exec "$@"', "sh", *words)
    assert done.returncode == 0, done.stderr

"""A live search whose disk is really full for a while: trials train on, it is said, and it ends as it should."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.journal_samples import ROOT

ON_A_SMALL_DISK = """
    import json, signal, sys, time
    from contextlib import suppress
    from pathlib import Path
    import psutil
    from tests.e2e.sandbox import Sandbox

    disk, own, ends, *cluster = sys.argv[1:]
    disk, sandbox = Path(disk), Sandbox(Path(disk))

    def ours():
        found = map(psutil.Process, sandbox.processes())
        return [one for one in found if not any("script.py" in word for word in one.cmdline())]

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
        view = sandbox.wait_for(
            lambda view: len(view["trials"]) == 2 and all(t["step"] > 5 for t in view["trials"]),
        )
        with (disk / "ballast").open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        view = sandbox.wait_for(
            lambda view: any("MiB free on the disk" in text for text in view["warnings"]),
        )
        steps = {t["id"]: t["step"] for t in view["trials"]}
        view = sandbox.wait_for(
            lambda view: all(t["step"] > steps[t["id"]] + 20 for t in view["trials"]),
        )
        assert {t["state"] for t in view["trials"]} == {"running"}, view
        asked = sandbox.gpusched("status")
        assert asked.code == 0, asked.text
        if ends == "killed":
            ballast = (disk / "ballast").open("ab", buffering=0)
            while not any("cannot be written" in text for text in sandbox.view()["warnings"]):
                with suppress(OSError):  # the journal's reserve as well
                    while ballast.write(b"x" * 512):
                        pass
                time.sleep(0.1)
            daemon = psutil.Process(sandbox.view()["daemon_pid"])
            running = ours()
            assert len(running) >= 5, "a daemon, two shims and two ranks"
            for _ in range(3):
                daemon.send_signal(signal.SIGINT)
                time.sleep(0.5)
            gone, alive = psutil.wait_procs(running, timeout=60)
            assert not alive, alive
            sys.exit()
        (disk / "ballast").unlink()
        sandbox.wait_for(
            lambda view: not any("MiB free" in text for text in view["warnings"])
        )
        stopped = sandbox.gpusched("stop")
        assert stopped.code == 0, stopped.text
        best = sandbox.gpusched("best", "--json")
        assert best.code == 0, best.text
        for trial in sandbox.view()["trials"]:
            path = sandbox.experiment / "trials" / f"{trial['id']:04d}" / "reports.jsonl"
            numbers = []
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # a line for which there was no room ends anywhere
                    numbers.append(json.loads(line)["n"])
            assert numbers == sorted(set(numbers)), "none twice"
            assert numbers[-1] == trial["step"], "the last are there"
        assert "there is room on the disk again" in sandbox.log()
        assert not [line for line in sandbox.log().splitlines() if "is given up" in line]
    finally:
        for process in ours():
            process.kill()
"""


def in_a_namespace(*command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    return subprocess.run(
        [*unshare, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


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
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ON_A_SMALL_DISK))
    for name in ("disk", "own"):
        (tmp_path / name).mkdir()
    places = f"{tmp_path}/disk {tmp_path}/own"
    mount = f"mount -t tmpfs -o size=128m tmpfs {tmp_path}/disk"
    done = in_a_namespace(
        "sh",
        "-c",
        f"{mount} && PYTHONPATH={ROOT} {sys.executable} {script} {places} {how}",
        timeout_s=500,
    )
    assert done.returncode == 0, done.stderr

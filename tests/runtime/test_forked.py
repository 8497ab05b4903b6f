"""Births: a fork shows its own mark and title, and a rank of ``launch: cold`` becomes its script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpusched
from gpusched.processes.identity import MARK, MARK_WIDTH_BYTES
from tests.rig import run_python

PROBE = """
import json, os, subprocess, sys
from gpusched.runtime.forked import put_mark, put_title
read, write = os.pipe()
if os.fork() == 0:
    put_mark(sys.argv[1])
    put_title("gpusched: trial 7.2")
    environ = open("/proc/self/environ", "rb").read().split(b"\\0")
    mine = [v.decode() for v in environ if v.startswith(b"GPUSCHED_MARK=")]
    whole = [v.decode() for v in environ if not v.startswith(b"GPUSCHED_MARK=")]
    child = subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()
    title = open("/proc/self/cmdline", "rb").read().strip(b"\\0").decode()
    name = open("/proc/self/comm").read().strip()
    told = [mine, whole, [v for v in child if "GPUSCHED_MARK" in v], title, name, sys.argv]
    os.write(write, json.dumps(told).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1 << 20).decode())
"""


def probe(mark: str, **variables: str) -> list[object]:
    environment = {"PATH": os.environ["PATH"], "AAA": "1", **variables, "ZZZ": "2"}
    words = [sys.executable, "-c", PROBE, mark, "padding" * 5]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    told: list[object] = json.loads(done.stdout)
    return told


def test_mark_and_title_in_place() -> None:
    room = {MARK: " " * MARK_WIDTH_BYTES}
    mine, others, childs, title, name, argv = probe("8:123:7:2", **room)
    wanted = f"{MARK}=" + "8:123:7:2".ljust(MARK_WIDTH_BYTES)
    assert mine == [wanted]
    assert childs == [wanted], "what is executed from here on has it too"
    assert {"AAA=1", "ZZZ=2"} <= set(others), "nothing beside it was touched"
    assert (title, name) == ("gpusched: trial 7.2", "gpusched: trial")
    assert argv == ["-c", "8:123:7:2", "padding" * 5]


@pytest.mark.parametrize(
    ("mark", "room"), [("8:123:7:2", "short"), ("x" * 200, " " * MARK_WIDTH_BYTES)]
)
def test_without_room_nothing_is_written(mark: str, room: str) -> None:
    mine, others, *_ = probe(mark, **{MARK: room})
    assert mine == [f"{MARK}={room}"]
    assert {"AAA=1", "ZZZ=2"} <= set(others)


FAILS = """
import json, os, sys
from gpusched.protocol import LaunchSpec
from gpusched.runtime.forked import fork_ranks
script, folder, cpus = sys.argv[1], os.path.dirname(sys.argv[1]), [*os.sched_getaffinity(0)]
spec = LaunchSpec(0, 1, folder, folder, script, [], folder, {}, [cpus], sys.executable)
(rank,) = fork_ranks(spec)
rank.begin({}, (folder + "/out", folder + "/err"))
print(os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1]))
"""


@pytest.mark.parametrize("launch", ["warm", "cold"])
def test_a_script_that_failed_ends_although_its_threads_do_not(tmp_path: Path, launch: str) -> None:
    """Its trial hung until it was ended for that, and was begun again, three times; why it failed was told nowhere."""
    script = tmp_path / "train.py"
    script.write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[60]).start()\n1 / 0\n"
    )
    words = ("-c", FAILS) if launch == "warm" else ("-m", "gpusched.runtime.rank")
    given = {"TORCHELASTIC_ERROR_FILE": f"{tmp_path}/error", "GPUSCHED_LEAVE_GRACE_S": "0.5"}
    done = run_python(*words, script, **given)
    assert int(done.stdout or done.returncode) == -signal.SIGTERM, done.stderr
    assert "ZeroDivisionError: train.py:3" in (tmp_path / "error").read_text()


def test_a_cold_rank_runs_what_it_is_given(tmp_path: Path) -> None:
    cold = Path(gpusched.__file__).parent / "runtime" / "cold.py"
    script = tmp_path / "train"
    script.write_text("import sys\nprint(*sys.argv[1:])\n")
    mine = {"err": f"{tmp_path}/err", "error": f"{tmp_path}/error", "cpus": [0]}
    for out in ("/dev/full", f"{tmp_path}/out"):  # a disk that is full ends no trial
        given = {"LOCAL_RANK": "0", "GPUSCHED_RANKS": json.dumps([{**mine, "out": out}])}
        assert not run_python("-I", cold, script, "--lr", "0.1", **given).returncode
    assert (tmp_path / "out").read_text() == "--lr 0.1\n", (tmp_path / "err").read_text()

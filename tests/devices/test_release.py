"""The release rule on plain values, and whose a process is."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.devices.release import (
    IDLE_LIMIT_BYTES,
    SCREEN_TOLERANCE_BYTES,
    TOLERANCE_BYTES,
    UNSEEN_LIMIT_BYTES,
    Holder,
    Processes,
    Seen,
    judge,
    learn,
)
from tests.devices.fake_nvml import GIB, MIB
from tests.rig import wait_until

IDLE = 4 * MIB


def seen(memory: int | None = 4 * MIB, *holders: Holder, error: str = "") -> Seen:
    return Seen(0.0, holders, memory, error=error)


def on(pid: int, memory: int | None, **more: Any) -> Holder:
    """A process on the GPU: ours from 100 on."""
    who = Holder(pid, "foreign" if pid < 100 else "ours", "bob", f"job {pid}", memory)
    return replace(who, **more)


@pytest.mark.parametrize(
    ("reading", "is_free", "why"),
    [
        (seen(), True, ""),
        (seen(60 * MIB), True, ""),
        (seen(269 * MIB), False, "265 MiB more memory in use than when nobody was on it"),
        (seen(None), False, "no memory figure"),
        (seen(error="NVML: Unknown Error"), False, "cannot be read"),
        (seen(IDLE, on(7, 3)), False, "held by pid 7 (bob: job 7, 3 bytes)"),
        (seen(IDLE, on(107, 3)), False, "held by pid 107"),
        (seen(2 * GIB, on(7, 900 * MIB, draws=True)), False, "1.12 GiB more"),
        (seen(2 * GIB, on(7, 2 * GIB, draws=True)), True, ""),
        (seen(3 * GIB, on(7, 3 * GIB, draws=True)), False, "held by pid 7"),
        (seen(IDLE, on(107, MIB, draws=True)), False, "held by pid 107"),
        (seen(490 * MIB, on(7, 300 * MIB, draws=True)), True, ""),
        (seen(34 * MIB, on(7, 30 * MIB, command="nvidia-cuda-mps-server")), True, ""),
        (seen(164 * MIB, on(7, 30 * MIB, command="nvidia-cuda-mps-server")), False, "130 MiB more"),
        (seen(560 * MIB, on(7, 300 * MIB, draws=True)), False, "256 MiB more"),
    ],
)
def test_the_rule(reading: Seen, is_free: bool, why: str) -> None:
    verdict = judge(reading, IDLE)
    assert verdict.is_free is is_free
    assert why in verdict.why
    assert is_free is (verdict.why == "")


def test_many_holders_are_counted_not_listed() -> None:
    crowd = seen(IDLE, *(on(pid, MIB) for pid in range(1, 8)))
    assert judge(crowd, IDLE).why.endswith("and 4 more")


def test_pids_that_cannot_be_seen_prove_nothing() -> None:
    unseen = on(7, MIB, whose="unseen")
    assert judge(seen(IDLE, unseen), IDLE).is_free
    assert not judge(seen(GIB, unseen), IDLE).is_free


def test_beside_another_trial_its_memory_is_taken_off() -> None:
    known = seen(5 * GIB, on(112, 5 * GIB))
    assert judge(known, 0, is_beside_trial=True).is_free
    assert not judge(known, 0).is_free
    assert not judge(replace(known, memory_bytes=6 * GIB), 0, is_beside_trial=True).is_free


def test_a_bare_context_is_more_than_an_idle_gpu_varies_by() -> None:
    """A context takes 256 MiB and more, and there may be no list that names it."""
    assert TOLERANCE_BYTES + UNSEEN_LIMIT_BYTES <= 256 * MIB
    assert SCREEN_TOLERANCE_BYTES < 256 * MIB


@given(st.lists(st.integers(0, 600 * MIB), min_size=1, max_size=20))
def test_what_is_in_use_when_nobody_is_there_only_falls(figures: list[int]) -> None:
    known: int | None = None
    for place, figure in enumerate(figures):
        known = learn(seen(figure), known, IDLE_LIMIT_BYTES)
        assert known == min(figures[: place + 1])


def test_only_an_idle_gpu_is_learnt_from() -> None:
    def learnt(
        memory: int | None, known: int | None = None, limit_bytes: int = IDLE_LIMIT_BYTES
    ) -> int | None:
        return learn(seen(memory), known, limit_bytes)

    assert learnt(700 * MIB) == 700 * MIB
    assert learnt(2 * GIB) is None
    assert learnt(None) is None
    assert learnt(700 * MIB, IDLE) == IDLE, "a dying trial is no new idle"
    assert learnt(300 * MIB, None, UNSEEN_LIMIT_BYTES) is None, "it may be a stranger's"
    assert learn(seen(0, on(7, 0)), IDLE, IDLE_LIMIT_BYTES) == IDLE
    screen = seen(300 * MIB, on(7, 299 * MIB, draws=True))
    assert learn(screen, IDLE, IDLE_LIMIT_BYTES) == IDLE
    assert learn(screen, None, IDLE_LIMIT_BYTES) == MIB


# ------------------------------------------------------------ whose a process is


ME = pwd.getpwuid(os.getuid()).pw_name
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def wait_for_exec(process: subprocess.Popen[bytes]) -> None:
    words = Path(f"/proc/{process.pid}/cmdline")
    wait_until(lambda: b"time.sleep" in words.read_bytes(), "exec")


def test_ours_by_the_experiments_mark(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    stranger_to_us = {"start_new_session": True}
    marked = {**os.environ, "GPUSCHED_DIR": str(tmp_path)}
    elsewhere = {**os.environ, "GPUSCHED_DIR": f"{tmp_path}-other"}
    program = (
        "import subprocess, sys, os\n"
        "env = dict(os.environ); env.pop('GPUSCHED_DIR', None)\n"
        f"child = subprocess.Popen({SLEEP!r}, env=env)\n"
        "print(child.pid, flush=True); child.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=marked, stdout=subprocess.PIPE, **stranger_to_us
    )
    started.append(parent)
    child = int(parent.stdout.readline())
    parent.stdout.close()
    try:
        # Asked from a process that is not their ancestor.
        asked = (
            "import sys; from pathlib import Path\n"
            "from gpusched.devices.release import Processes\n"
            "for text in sys.argv[1:3]:\n"
            "    mine = Processes(Path(text), visible=True)\n"
            "    print(*(mine.who(int(pid)).whose for pid in sys.argv[3:]))\n"
            "print(*(Processes(visible=True).who(int(pid)).whose for pid in sys.argv[3:]))\n"
        )
        command = [sys.executable, "-c", asked, str(tmp_path), elsewhere["GPUSCHED_DIR"]]
        found = subprocess.run(
            [*command, str(parent.pid), str(child), "1"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    finally:
        os.kill(child, 9)
    assert found == ["ours ours foreign", "foreign foreign foreign", "ours ours foreign"]


def test_gone_and_zombie_keep_their_names(started: list[subprocess.Popen[bytes]]) -> None:
    processes = Processes(visible=True)
    process = subprocess.Popen(SLEEP, env={**os.environ, "GPUSCHED_DIR": "any"})
    started.append(process)
    wait_for_exec(process)
    assert (processes.who(process.pid).whose, processes.who(process.pid).user) == ("ours", ME)
    # Cut where it is long: how much of it is the interpreter's path depends on where this checkout lies.
    assert processes.who(process.pid).command.startswith(sys.executable[:40])
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    zombie = processes.who(process.pid)
    assert (zombie.whose, zombie.user) == ("gone", ME)
    process.wait()
    assert str(processes.who(process.pid)).endswith("which has ended but still has a context")
    assert processes.who(2**22) == Holder(2**22, "gone")


def test_a_job_that_proc_hides_is_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``hidepid=2`` a colleague's "has ended but still has a context"."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    processes = Processes(visible=True)
    assert [processes.who(pid).whose for pid in (os.getpid(), 2**22)] == ["foreign", "gone"]
    assert str(processes.who(os.getpid())) == f"pid {os.getpid()} (unknown user: hidden)"


def test_outside_the_container_nobody_is_known() -> None:
    who = Processes(visible=False).who(os.getpid())
    assert str(who) == f"pid {os.getpid()} outside this container"

"""Naming processes: real ones."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.devices.holders import Holder, Processes, in_initial_pid_namespace, printable
from tests.rig import wait_until

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
            "from gpusched.devices.holders import Processes\n"
            "for text in sys.argv[1:3]:\n"
            "    mine = Processes(Path(text))\n"
            "    print(*(mine.who(int(pid)).whose for pid in sys.argv[3:]))\n"
            "print(*(Processes().who(int(pid)).whose for pid in sys.argv[3:]))\n"
        )
        command = [sys.executable, "-c", asked, str(tmp_path), elsewhere["GPUSCHED_DIR"]]
        found = subprocess.run(
            [*command, str(parent.pid), str(child), "1"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    finally:
        os.kill(child, 9)
    assert found == ["ours ours foreign", "foreign foreign foreign", "ours ours foreign"]


def test_ours_by_descent(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    clean = {k: v for k, v in os.environ.items() if k != "GPUSCHED_DIR"}
    process = subprocess.Popen(SLEEP, env=clean)
    started.append(process)
    wait_for_exec(process)
    holder = Processes(tmp_path).who(process.pid)
    assert holder.whose == "ours"
    assert holder.user == ME
    # Cut where it is long: how much of it is the interpreter's path depends on where this checkout lies.
    assert holder.command.removesuffix("…") in f"{sys.executable} -c import time; time.sleep(60)"
    assert holder.command.startswith(sys.executable[:40])


def test_gone_and_zombie_keep_their_names(started: list[subprocess.Popen[bytes]]) -> None:
    processes = Processes()
    process = subprocess.Popen(SLEEP)
    started.append(process)
    wait_for_exec(process)
    assert processes.who(process.pid).whose == "ours"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    zombie = processes.who(process.pid)
    assert (zombie.whose, zombie.user) == ("gone", ME)
    process.wait()
    assert str(processes.who(process.pid)).endswith("which has ended but still has a context")
    assert processes.who(2**22) == Holder(2**22, "gone")


def test_outside_the_container_nobody_is_known() -> None:
    processes = Processes()
    processes.visible = False
    assert str(processes.who(os.getpid())) == f"pid {os.getpid()} outside this container"
    assert processes.looks_ours(os.getpid())


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "Xorg", "gnome-shell"])
def test_what_lives_on_an_idle_gpu(started: list[subprocess.Popen[bytes]], name: str) -> None:
    """The kernel cuts names at 15 bytes."""
    process = subprocess.Popen([name, *SLEEP[1:]], executable=sys.executable)
    started.append(process)
    wait_for_exec(process)
    assert Processes().who(process.pid).whose == "ours", "it only says so in its command line"
    rename = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{rename}; print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    started.append(process)
    process.stdout.readline()
    process.stdout.close()
    assert Processes().who(process.pid).whose == "resident"


def test_other_peoples_command_lines_cannot_write_to_the_terminal() -> None:
    assert printable("python -c \x1b[2Jevil\x07\n\udcff") == "python -c ?[2Jevil? ?"
    assert len(printable("x" * 500)) == 60


def test_the_namespace_is_the_kernels_own_or_not() -> None:
    assert in_initial_pid_namespace() is (Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC)

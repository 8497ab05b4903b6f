"""Processes by identity: a number that is handed out again is never hit; what belongs to a tree is found."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.errors import InputError
from gpusched.processes import identity as processes
from gpusched.processes.identity import (
    MARK,
    Identity,
    children,
    command_of,
    descendants,
    identify,
    is_alive,
    kill_each,
    mark_of,
    of_incarnation,
    open_pidfd,
    send_signal,
    start_time,
)
from tests.rig import wait_until

SLEEP = "import time; time.sleep(600)"
#: The pid of a process that is stuck, what frees it, and the files of it that were asked for.
Stuck = tuple[int, threading.Event, list[str]]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a sleeping process; all are gone at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str = SLEEP, **options: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-S", "-c", code], **options))
        return started[-1]

    yield start
    for process in started:
        kill_each(identify(descendants(process.pid)))
        process.kill()
        process.wait()


def me() -> Identity:
    return Identity(os.getpid(), start_time(os.getpid()) or 0)


def test_identity_is_pid_and_start_time(start: Start) -> None:
    process = start()
    (who,) = identify([process.pid])
    assert is_alive(who)
    stranger = Identity(process.pid, who.start_time + 1)
    assert not is_alive(stranger)
    assert open_pidfd(stranger) is None
    assert not send_signal(stranger, signal.SIGKILL)
    assert process.poll() is None, "a process with the same number is left alone"
    assert send_signal(who, signal.SIGKILL)
    process.wait()
    assert not is_alive(who)
    assert not send_signal(who, signal.SIGKILL)


def test_a_python_without_pidfds_has_the_kernels(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pythons of uv and conda may be built on a kernel without pidfds."""
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")
    processes.require_pidfds()
    process = start()
    (who,) = identify([process.pid])
    descriptor = open_pidfd(who)
    assert send_signal(who, signal.SIGTERM)
    assert select.select([descriptor], [], [], 20.0)[0] == [descriptor], "it tells the end"
    os.close(descriptor)
    assert process.wait() == -signal.SIGTERM


def test_a_kernel_without_pidfds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PIDFD_OPEN", 9999)
    with pytest.raises(InputError, match=r"gpusched needs Linux 5\.3 or newer; this kernel is "):
        processes.require_pidfds()


def test_a_zombie_is_not_alive(start: Start) -> None:
    process = start("pass")
    wait_until(lambda: start_time(process.pid) is None)
    assert identify([process.pid]) == []


def test_a_name_with_brackets_and_spaces(start: Start) -> None:
    process = start(
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); print(flush=True); time.sleep(600)",
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    process.stdout.close()
    assert start_time(process.pid)


@pytest.mark.parametrize("kernel_helps", [True, False])
def test_descendants(start: Start, monkeypatch: pytest.MonkeyPatch, kernel_helps: bool) -> None:
    monkeypatch.setattr(processes, "_kernel_lists_children", lambda: kernel_helps)
    process = start(
        "import os, time\nfor _ in range(3):\n  if os.fork() == 0:\n    os.fork(); time.sleep(600)\ntime.sleep(600)"
    )
    wait_until(lambda: len(descendants(process.pid)) == 6)
    assert process.pid in children(os.getpid())
    assert set(children(process.pid)) < set(descendants(process.pid))
    assert set(descendants(process.pid)) < set(descendants(os.getpid()))


def test_a_mark_survives_fork_and_exec_and_new_sessions(start: Start, tmp_path: Path) -> None:
    mark = mark_of(tmp_path, 7, 2)
    grandchild = f"import os; os.write(1, b'%d\\n' % os.getpid()); {SLEEP}"
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n  os.setsid()\n"
        f"  if os.fork() == 0: os.execv(sys.executable, ['x', '-S', '-c', {grandchild!r}])\n"
        "  os._exit(0)\n"
        "os.wait()\n"
        "os.write(1, b'alone\\n')\n"  # in one call: a line of the grandchild's may come between
        "time.sleep(600)"
    )
    process = start(code, env={**os.environ, MARK: mark.ljust(96)}, stdout=subprocess.PIPE)
    with process.stdout as told:
        said = {told.readline().strip() for _ in range(2)} - {b"alone"}
    found = of_incarnation(mark, ())
    assert {who.pid for who in found} == {process.pid, *map(int, said)}
    assert len(found) == 2
    assert of_incarnation(mark_of(tmp_path, 7, 1), ()) == []
    assert of_incarnation(mark_of(tmp_path, 72, 2), ()) == []
    assert kill_each(found) == 2
    wait_until(lambda: of_incarnation(mark, ()) == [])


def test_sessions_count_only_while_their_leader_is_who_it_was(start: Start, tmp_path: Path) -> None:
    leader = start(start_new_session=True)
    (who,) = identify([leader.pid])
    mark = mark_of(tmp_path, 1, 1)
    assert [found.pid for found in of_incarnation(mark, [who])] == [leader.pid]
    reused = Identity(leader.pid, who.start_time - 5)
    assert of_incarnation(mark, [reused]) == []


def test_one_never_finds_oneself(tmp_path: Path) -> None:
    session = Identity(os.getsid(0), start_time(os.getsid(0)) or 0)
    mark = mark_of(tmp_path, 1, 1)
    assert me() not in of_incarnation(mark, [session])


def test_marks_tell_experiments_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert mark_of(tmp_path / "a", 1, 1) != mark_of(tmp_path / "b", 1, 1)
    assert len(mark_of(tmp_path, 10**9, 10**6)) <= processes.MARK_WIDTH_BYTES


@pytest.fixture
def stuck(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    """A process whose memory the kernel shows to nobody until the event is set, as in a driver that hangs."""
    process, freed, asked = start(), threading.Event(), []
    read_file = processes.read_file

    def read(path: str, *options: int) -> bytes | None:
        if path in (f"/proc/{process.pid}/{name}" for name in ("environ", "cmdline", "maps")):
            asked.append(path)
            freed.wait()
        return read_file(path, *options)

    monkeypatch.setattr(processes, "read_file", read)
    yield process.pid, freed, asked
    freed.set()


def test_where_no_thread_can_start_processes_are_read_all_the_same(start: Start) -> None:
    process, usual = start(), threading.stack_size(1 << 46)  # more than there are addresses
    try:
        wait_until(lambda: "sleep" in command_of(process.pid))
    finally:
        threading.stack_size(usual)


def test_a_process_that_cannot_be_read_holds_nobody_up(
    start: Start, tmp_path: Path, stuck: Stuck
) -> None:
    mark = mark_of(tmp_path, 7, 2)
    ours = start(env={**os.environ, MARK: mark})
    for _ in range(20):  # asked once, not in every round of a hunt
        assert [who.pid for who in of_incarnation(mark, ())] == [ours.pid]
    assert len(stuck[2]) == 1
    assert command_of(stuck[0]) == ""
    stuck[1].set()
    wait_until(lambda: "sleep" in command_of(stuck[0]))

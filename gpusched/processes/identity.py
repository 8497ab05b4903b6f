"""Processes by identity, never by bare number: who is alive, who belongs to whom, who is told to go.

Rules of this file:

* A process is *(pid, start time, boot)*. A signal goes through a pidfd whose start time was checked after it was
  opened, so a number that was handed out again is never hit.
* What belongs to an incarnation is found by what a process cannot shed by accident: its parents, the sessions of shim
  and ranks, and the mark in its environment (``MARK``), which ``fork`` and ``exec`` pass on.
* psutil is for what is shown and what is seldom asked (``devices/``, the doctor). Here it is not enough: it has no
  pidfds, no start time in the kernel's own ticks (``shim.json`` keeps those), no time limit on a read; its
  ``children()`` looks at every process of the machine; and importing it costs a shim more than all of this.
"""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

from gpusched.errors import InputError

MARK = "GPUSCHED_MARK"
"""Environment variable that marks every process of an incarnation; see ``mark_of``."""

MARK_WIDTH_BYTES = 96
"""A mark is padded to this width, so that a forked process can put its own in the place of its parent's."""

PATIENCE_S = 0.5
"""Time to wait for the kernel's figures of a process's memory."""

T = TypeVar("T")
_silent: dict[int, int | None] = {}  # processes that kept us waiting, with their start times
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GONE = frozenset("ZXx")
_PIDFD_OPEN, _PIDFD_SEND_SIGNAL = 434, 424  # on every architecture
_LIBC = ctypes.CDLL(None, use_errno=True)
# The kernel's PROC_IPC_INIT_INO and PROC_PID_INIT_INO.
_INITIAL = {"ipc": 0xEFFFFFFF, "pid": 0xEFFFFFFC}


class Identity(NamedTuple):
    """A process, told apart from a later one with the same number by when it started (clock ticks since boot)."""

    pid: int
    start_time: int


def read_file(path: str, limit_bytes: int = 1 << 20) -> bytes | None:
    """Read a file of ``/proc``; None if missing."""
    try:
        with Path(path).open("rb") as file:
            return file.read(limit_bytes)
    except OSError:
        return None


def read_each(pids: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
    """Return what ``read`` says of each process, without those that keep it waiting.

    For ``environ``, ``cmdline`` and ``maps``: the kernel reads them under the lock of the process's memory, which a
    process that is stuck in a driver may hold for ever. So a thread reads; a process that takes longer than
    ``PATIENCE_S`` is left out, here and in later calls, until it has answered after all.
    """
    answers: dict[int, T] = {}
    silent = dict(_silent)
    left = deque(pid for pid in pids if pid not in silent or start_time(pid) != silent[pid])
    while left:
        answered: SimpleQueue[T] = SimpleQueue()
        reader = threading.Thread(target=_read_all, args=(tuple(left), read, answered), daemon=True)
        start_thread(reader)
        try:
            while left:
                answers[left[0]] = answered.get(timeout=PATIENCE_S)
                left.popleft()
            if reader.is_alive():
                reader.join()
        except Empty:
            pid = left.popleft()
            _silent[pid] = start_time(pid)
            if not answered.empty():  # just now
                _silent.pop(pid, None)
    return answers


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; on a machine at its limit of threads its work is done here, before this returns."""
    try:
        thread.start()
    except RuntimeError:
        thread.run()


def _read_all(pids: Iterable[int], read: Callable[[int], T], answered: SimpleQueue[T]) -> None:
    for pid in pids:
        answered.put(read(pid))
        if _silent.pop(pid, None) is not None:
            return  # another thread has gone on with the rest


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


@functools.cache
def boot_id() -> str:
    """Return the name of this boot; empty where the kernel does not say. A pid from another boot is dead."""
    return (read_file("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()


def in_initial_namespace(kind: str) -> bool:
    """Tell whether this process is in the namespace of this kind that the machine began with."""
    try:
        return Path(f"/proc/self/ns/{kind}").stat().st_ino == _INITIAL[kind]
    except OSError:
        return False


def become_subreaper() -> None:
    """Have orphans among the descendants of this process become its children."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot become a subreaper")


class Bell:
    """Ends a wait when a child ends, or a signal with a handler comes."""

    def __init__(self) -> None:
        self._bell, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def put_up(self) -> None:
        """Ring from now on, in the main thread of this process."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self, line: int, timeout_s: float | None) -> bool:
        """Wait until it rings, or this descriptor (-1: none) has something, which is what True means."""
        poll = select.poll()
        for descriptor in {self._bell, line} - {-1}:
            poll.register(descriptor, select.POLLIN)
        ready = [one for one, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]
        if self._bell in ready:
            with suppress(BlockingIOError):
                os.read(self._bell, 4096)
        return line in ready

    def take_down(self) -> None:
        """For a forked child: ring no more."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._bell)
        os.close(self._wake)


def end_with_parent() -> None:
    """Have this process killed when the thread that made it ends. Best effort: forks do not inherit that."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def mark_of(folder: Path | str, trial: int | str, incarnation: int | str) -> str:
    """Make the mark of an incarnation: its experiment's folder by device and inode, trial and incarnation."""
    where = Path(folder).stat()
    return f"{where.st_dev}:{where.st_ino}:{trial}:{incarnation}"


def stat_fields(pid: int) -> list[bytes] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the state on (index 0 is field 3), or None when it is gone."""
    text = read_file(f"/proc/{pid}/stat", 2048)
    if not text:
        return None
    return text[text.rfind(b")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None if it is gone or a zombie."""
    fields = stat_fields(pid)
    if fields is None or chr(fields[0][0]) in _GONE:
        return None
    return int(fields[19])


def is_alive(process: Identity) -> bool:
    return start_time(process.pid) == process.start_time


def _ask_kernel(call: int, *arguments: int | None) -> int:
    """Make a system call that this Python may lack: those of uv and conda are built on old kernels. Raises OSError."""
    answer = int(_LIBC.syscall(call, *arguments))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def require_pidfds() -> None:
    """Raise InputError on a kernel without them."""
    try:
        os.close(_ask_kernel(_PIDFD_OPEN, os.getpid(), 0))
    except OSError:
        raise InputError(
            f"gpusched needs Linux 5.3 or newer; this kernel is {os.uname().release}"
        ) from None


def open_pidfd(process: Identity) -> int | None:
    """Open a descriptor of exactly this process, readable when it ends; None if it has ended."""
    try:
        descriptor = _ask_kernel(_PIDFD_OPEN, process.pid, 0)
    except OSError:
        return None
    if is_alive(process):
        return descriptor
    os.close(descriptor)
    return None


def send_signal(process: Identity, number: int) -> bool:
    """Signal exactly this process; return False if it is gone (or belongs to another user)."""
    descriptor = open_pidfd(process)
    if descriptor is None:
        return False
    try:
        _ask_kernel(_PIDFD_SEND_SIGNAL, descriptor, number, None, 0)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def identify(pids: Iterable[int]) -> list[Identity]:
    """Return the identities of those ``pids`` that are alive."""
    return [Identity(pid, began) for pid in pids if (began := start_time(pid)) is not None]


@functools.cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def all_pids() -> list[int]:
    return [int(name) for name in _names("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """Return the direct children of ``pid``, zombies included."""
    if not _kernel_lists_children():
        return [
            child for child in all_pids() if (stat_fields(child) or (b"", b""))[1] == b"%d" % pid
        ]
    found: list[int] = []
    for thread in _names(f"/proc/{pid}/task"):
        found.extend(map(int, (read_file(f"/proc/{pid}/task/{thread}/children") or b"").split()))
    return found


def descendants(pid: int) -> list[int]:
    """Return children, their children and so on, zombies included; nearest first."""
    found: list[int] = []
    seen = {pid}
    unvisited = [pid]
    while unvisited:
        for child in children(unvisited.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                unvisited.append(child)
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def marks_of(pids: Iterable[int]) -> dict[int, bytes]:
    """Read the mark of each process that has one and answers."""
    found = {}
    for pid, environment in read_each(pids, lambda pid: read_file(f"/proc/{pid}/environ")).items():
        _, name, rest = (environment or b"").partition(MARK.encode() + b"=")
        if name:
            found[pid] = rest.partition(b"\0")[0].strip()
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process as one line; empty if it has none or does not answer."""
    line = read_each([pid], lambda pid: read_file(f"/proc/{pid}/cmdline", 4096)).get(pid) or b""
    return " ".join(line.replace(b"\0", b" ").decode("utf-8", "replace").split())


def in_sessions(sessions: Iterable[int]) -> list[int]:
    """Return the processes of these sessions."""
    wanted = frozenset(sessions)
    return [pid for pid in all_pids() if _session(pid) in wanted]


def of_incarnation(mark: str, leaders: Iterable[Identity]) -> list[Identity]:
    """Find what is left of an incarnation whose shim may be gone: marked, in a leader's session, or below one of those.

    A session that began after its recorded leader's number was handed out again is another's, so a leader counts only
    while its number is unused or its own. This process itself is never among them.
    """
    sessions = {who.pid for who in leaders if start_time(who.pid) in (None, who.start_time)}
    wanted = mark.encode()
    ours: dict[int, None] = {}
    pids = all_pids()
    marks = marks_of(pids)
    for pid in pids:
        if _session(pid) in sessions or marks.get(pid) == wanted:
            ours[pid] = None
            ours.update(dict.fromkeys(descendants(pid)))
    ours.pop(os.getpid(), None)
    return identify(ours)


def kill_each(processes: Iterable[Identity]) -> int:
    """Send SIGKILL to each; return how many were still there."""
    return sum(send_signal(process, signal.SIGKILL) for process in processes)


def reap_all() -> tuple[dict[int, int], bool]:
    """Reap every child that has ended; return their wait statuses by pid, and whether no child is left (ECHILD)."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.update([found])
        return ended, False
    return ended, True

"""Who a process is: alive or gone, whose, and in which words to name it.

NVML gives pids; this turns them into people. A process of *ours* carries this experiment's folder in its environment
(the warm server's, which its forks inherit), or descends from this daemon. A process of anybody else is foreign: it is
named, never touched. Text that comes from other processes is cut short and stripped of control characters before it
reaches a terminal.

Reading ``/proc/<pid>/cmdline`` can block on a process that is stuck in the kernel, so only the threads of ``watch.py``
call ``Processes.who``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpusched.text import show_bytes

Whose = Literal["ours", "foreign", "gone", "unseen", "resident"]

PROC = Path("/proc")
COMMAND_LENGTH_MAX = 60
MEMORY_MANAGER = "nvidia-uvm"
"""The device file beside the GPUs' that every process with a CUDA context has open."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial pid namespace (``PROC_PID_INIT_INO`` of the kernel)."""

RESIDENTS = {
    *(
        "nvidia-cuda-mps-server",
        "Xorg",
        "Xwayland",
        "Xvfb",
        "gnome-shell",
        "gnome-remote-desktop-daemon",
    ),
    *(
        "mutter",
        "kwin_x11",
        "kwin_wayland",
        "plasmashell",
        "ksmserver",
        "sddm-greeter",
        "cinnamon",
        "sway",
    ),
    *("Hyprland", "weston", "gamescope", "cosmic-comp"),
}
"""What lives on an idle GPU: an MPS server, and the programs that draw the screen (some compute a little as well)."""
COMM_LENGTH = 15
"""The kernel cuts the names of processes after so many bytes."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a GPU. ``unseen``: NVML names a pid that means nothing in this container's pid namespace."""

    pid: int
    whose: Whose
    user: str = ""
    command: str = ""
    memory_bytes: int | None = None

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {show_bytes(self.memory_bytes)}"
        if self.whose == "unseen":
            return f"pid {self.pid} outside this container{size}"
        if self.whose != "gone":
            return f"pid {self.pid} ({self.user}: {self.command}{size})"
        known = f" ({self.user}: {self.command}{size})" if self.user else size and f" ({size[2:]})"
        return f"pid {self.pid}{known}, which has ended but still has a context"


class Processes:
    """The machine's processes, as far as we may look at them. ``experiment``: the folder whose processes are ours.

    ``visible``: whether NVML's pids are those of our pid namespace (``pidcheck.py`` finds that out).
    """

    def __init__(self, experiment: Path | None = None, proc: Path = PROC) -> None:
        self.visible = True
        self._mark = b"GPUSCHED_DIR=" + (os.fsencode(experiment) if experiment else b"")
        self._exact = experiment is not None
        self._proc = proc
        self._known: dict[tuple[int, str], Holder] = {}
        self._last: dict[int, Holder] = {}

    def exists(self, pid: int) -> bool:
        """Also for a process that ``hidepid`` hides from us."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True

    def who(self, pid: int) -> Holder:
        """Name a process. Looked at once for each pid and start time; a zombie has ended."""
        if not self.visible:
            return Holder(pid, "unseen")
        fields = self._stat(pid)
        if not self.exists(pid) or (fields and fields[0] in "ZX"):
            last = self._last.get(pid)
            return replace(last, whose="gone") if last else Holder(pid, "gone")
        key = (pid, fields[19] if len(fields) > 19 else "")
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._last[pid] = self._look_at(pid)
            if len(self._known) > 4096:  # years of somebody else's jobs
                self._known.clear()
                self._last.clear()
        return known

    def looks_ours(self, pid: int) -> bool:
        """Whether a process of ours has this pid here, whether or not NVML means it by that number."""
        return self.exists(pid) and self._is_ours(pid)

    def _look_at(self, pid: int) -> Holder:
        name = self._text(pid, "comm")
        command = self._text(pid, "cmdline") or name
        if name in {resident[:COMM_LENGTH] for resident in RESIDENTS}:
            return Holder(pid, "resident", self._user(pid), command)
        whose: Whose = "ours" if self._is_ours(pid) else "foreign"
        return Holder(pid, whose, self._user(pid), command)

    def _is_ours(self, pid: int) -> bool:
        """By the mark in the environment of it or of an ancestor, or by descent from this process."""
        here = os.getpid()
        for _ in range(64):
            if pid == here or self._marked(pid):
                return True
            pid = self._parent(pid)
            if pid <= 1:
                return False
        return False

    def _marked(self, pid: int) -> bool:
        try:
            entries = (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's: not ours
            return False
        if self._exact:
            return self._mark in entries
        return any(entry.startswith(self._mark) for entry in entries)

    def _stat(self, pid: int) -> list[str]:
        """The fields of ``/proc/<pid>/stat`` after the command's name, which may hold anything."""
        try:
            return (
                (self._proc / str(pid) / "stat")
                .read_text(errors="replace")
                .rpartition(")")[2]
                .split()
            )
        except OSError:
            return []

    def _parent(self, pid: int) -> int:
        fields = self._stat(pid)
        return int(fields[1]) if len(fields) > 1 else 0

    def _user(self, pid: int) -> str:
        try:
            uid = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return "unknown user"
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return f"uid {uid}"

    def _text(self, pid: int, name: str) -> str:
        with contextlib.suppress(OSError):
            return printable((self._proc / str(pid) / name).read_bytes())
        return ""

    def openers(self, path: Path, limit: int = 4) -> tuple[Holder, ...]:
        """Processes that have ``path`` open, without this one: who may hold memory when NVML names nobody.

        Those that compute, if there are any: monitors have a GPU's file open all the time, and CUDA its memory
        manager's as well. Slow (looks at every descriptor we may look at) and incomplete for other users' processes.
        """
        manager = path.with_name(MEMORY_MANAGER)
        found: list[Holder] = []
        computing: list[Holder] = []
        for folder in self._proc.iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                links = {_target(link) for link in (folder / "fd").iterdir()}
                if path in links:
                    holder = self._look_at(int(folder.name))
                    (computing if manager in links else found).append(holder)
            if len(computing) == limit:
                break
        return tuple((computing or found)[:limit])


def _target(link: Path) -> Path | None:
    """None for one that cannot be read, closed since it was listed, say: it must not hide the process's others."""
    try:
        return link.readlink()
    except OSError:
        return None


def printable(text: bytes) -> str:
    """A command line as one short printable line."""
    line = " ".join(text.replace(b"\0", b" ").decode(errors="replace").split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= COMMAND_LENGTH_MAX else line[: COMMAND_LENGTH_MAX - 1] + "…"


def in_initial_pid_namespace() -> bool:
    """Whether pids here are the kernel's own, so that NVML's mean the same."""
    try:
        return (PROC / "self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False

"""Processes on a GPU: alive or gone, whose, and in which words to name them.

NVML gives pids; this turns them into people. A process of *ours* carries this experiment's folder in its environment
(the warm server's, which its forks inherit), or descends from this daemon. Any other process is foreign: it is named,
never touched. Text that comes from other processes is cut short and stripped of control characters before it
reaches a terminal.

A process that is stuck in the kernel may keep a reader waiting (``processes/identity.py``: ``read_each``);
naming takes a moment in any case, so the helper processes do it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import psutil

from gpusched.processes.identity import read_each
from gpusched.text import show_bytes

T = TypeVar("T")
Whose = Literal["ours", "foreign", "gone", "unseen", "resident", "unknown", "desktop"]

PROC = Path("/proc")
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
COMMAND_LENGTH_MAX = 60
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial pid namespace (``PROC_PID_INIT_INO`` of the kernel)."""

# fmt: off
RESIDENTS = {
    "nvidia-cuda-mps-server", "Xorg", "Xwayland", "Xvfb", "gnome-shell", "gnome-remote-desktop-daemon", "mutter",
    "kwin_x11", "kwin_wayland", "plasmashell", "ksmserver", "sddm-greeter", "cinnamon", "sway", "Hyprland", "weston",
    "gamescope", "cosmic-comp",
}
# fmt: on
"""Residents of an idle GPU: an MPS server, and the programs that draw the screen (some compute a little as well)."""
PID_MAX = 1 << 22
"""The largest pid of Linux; drivers have named 4294967295 and 0."""
# fmt: off
DESKTOP = {
    "chrome", "chromium", "firefox", "firefox-bin", "Isolated Web Co", "brave", "msedge", "opera", "electron", "code",
    "slack", "Discord", "teams", "zoom", "spotify", "steamwebhelper", "mpv", "vlc", "totem", "obs", "ffmpeg",
    "kdenlive", "blueman-applet", "nautilus", "xdg-desktop-por",
}
# fmt: on
"""Programs of a desktop that compute a little on the GPU beside the screen: residents while they hold little."""
DESKTOP_MAX_BYTES = 1024 << 20
COMM_LENGTH = 15
"""The kernel cuts the names of processes after so many bytes."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a GPU. ``unseen``: NVML names a pid that means nothing in this container's pid namespace.

    ``unknown``: NVML names no process at all: pid 0, or a number that no process can have.
    """

    pid: int
    whose: Whose
    user: str = ""
    command: str = ""
    memory_bytes: int | None = None

    @property
    def lives_there(self) -> bool:
        """Whether the process is part of an idle GPU. A program of the desktop is while it holds little."""
        small = self.memory_bytes is not None and self.memory_bytes <= DESKTOP_MAX_BYTES
        return self.whose == "resident" or (self.whose == "desktop" and small)

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {show_bytes(self.memory_bytes)}"
        if self.whose == "unseen" and not self.pid:
            return f"processes outside this container{size}"
        if self.whose == "unseen":
            return f"pid {self.pid} outside this container{size}"
        if self.whose == "unknown":
            return f"an unknown process (NVML names pid {self.pid}{size})"
        if self.whose != "gone":
            return f"pid {self.pid} ({self.user}: {self.command}{size})"
        known = f" ({self.user}: {self.command}{size})" if self.user else size and f" ({size[2:]})"
        return f"pid {self.pid}{known}, which has ended but still has a context"


class Processes:
    """The machine's processes, as far as we may look at them. ``experiment``: the folder whose processes are ours.

    ``owner``: the process whose descendants are ours as well (this one if not given).
    ``contained``: we are in a pid namespace of a container. ``visible``: whether NVML's pids are those of our
    namespace (``opening.py`` finds that out).
    """

    def __init__(self, experiment: Path | None = None, owner: int | None = None) -> None:
        self.visible = True
        self.contained = False
        self.experiment = None if experiment is None else os.fspath(experiment)
        self._owner = owner or os.getpid()
        #: When each process began, and its name.
        self._known: dict[int, tuple[float, Holder]] = {}

    def who(self, pid: int) -> Holder:
        """Name a process. Looked at once for each pid and start time; a zombie has ended."""
        if not 0 < pid <= PID_MAX:
            return Holder(pid, "unknown")
        if not self.visible:
            return Holder(pid, "unseen")
        try:
            process = psutil.Process(pid)
            began, has_ended = process.create_time(), process.status() in GONE
        except psutil.Error:  # ``hidepid`` hides the processes of others
            began, has_ended = 0.0, not _exists(pid)
        known = self._known.get(pid)
        if has_ended:
            return replace(known[1], whose="gone") if known else Holder(pid, "gone")
        if known is None or known[0] != began:
            if len(self._known) > 4096:  # years of other people's jobs
                self._known.clear()
            known = self._known[pid] = (began, self._look_at(pid))
        return known[1]

    def looks_ours(self, pid: int) -> bool:
        """Tell whether a process of ours has this pid here, whether or not NVML means that process by the number."""
        return 0 < pid <= PID_MAX and _exists(pid) and self._is_ours(pid)

    def _look_at(self, pid: int) -> Holder:
        name = _ask(pid, psutil.Process.name) or ""
        command = printable(" ".join(_ask(pid, psutil.Process.cmdline) or [name]))
        user = _ask(pid, psutil.Process.username) or "unknown user"
        user = f"uid {user}" if user.isdecimal() else user
        if name[:COMM_LENGTH] in {resident[:COMM_LENGTH] for resident in RESIDENTS}:
            return Holder(pid, "resident", user, command)
        if name[:COMM_LENGTH] in {program[:COMM_LENGTH] for program in DESKTOP}:
            return Holder(pid, "desktop", user, command)
        return Holder(pid, "ours" if self._is_ours(pid) else "foreign", user, command)

    def _is_ours(self, pid: int) -> bool:
        """Look for the mark in the environment of the process or of an ancestor, or for this process among those."""
        ancestors = [process.pid for process in _ask(pid, psutil.Process.parents) or ()]
        line = [one for one in (pid, *ancestors) if one > 1]
        return self._owner in line or any(self._is_marked(one) for one in line)

    def _is_marked(self, pid: int) -> bool:
        folder = (_ask(pid, psutil.Process.environ) or {}).get("GPUSCHED_DIR")
        return folder is not None and self.experiment in (None, folder)


def _exists(pid: int) -> bool:
    """Tell whether there is such a process, also one that ``hidepid`` hides from us."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _ask(pid: int, question: Callable[[psutil.Process], T]) -> T | None:
    """Return psutil's answer about a process; None if it is gone, another user's, or keeps us waiting."""

    def answer(pid: int) -> T | None:
        try:
            return question(psutil.Process(pid))
        except (psutil.Error, OSError):
            return None

    return read_each([pid], answer).get(pid)


def printable(text: str) -> str:
    """Make a command line one short printable line."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= COMMAND_LENGTH_MAX else line[: COMMAND_LENGTH_MAX - 1] + "…"


def processes_here(experiment: Path | None = None) -> Processes:
    """Return the machine's processes as they can be seen from this pid namespace."""
    processes = Processes(experiment)
    processes.visible = in_initial_pid_namespace()
    processes.contained = not processes.visible
    return processes


def in_initial_pid_namespace() -> bool:
    """Tell whether pids here are the kernel's own, so that NVML's mean the same."""
    try:
        return (PROC / "self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False

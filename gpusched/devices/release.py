"""The release rule.

A device is free when (a) the trial's process tree is empty (the shim's word), (b) NVML names no process on it, but the
screen's and MPS's, where pids can be seen, and (c) its used memory is back at what it was when nobody was on it, plus a
tolerance. Not within the limit: quarantined, with the holder's name, until (b) and (c) hold. What cannot be read is not
free.

Killing a process only queues the driver's clean-up: its pid may leave NVML's list long before its memory comes back, or
the other way round, so neither alone proves anything. A stranger's process is in the way as one of ours is.

Whose a process is: one of *ours*, or an ancestor, carries this search's folder in its environment (the warm server's,
which its forks inherit). Any other is foreign: it is named, never touched. A process that is stuck in the
kernel may keep a reader waiting, so the helper process does the naming.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import psutil

from gpusched.devices.nvml import Vitals
from gpusched.processes.identity import in_initial_namespace, read_each
from gpusched.text import clean, show_bytes

MIB = 1 << 20
TOLERANCE_BYTES = 64 * MIB
"""Variation of the memory of an idle GPU, far less than a bare CUDA context (256 to 616 MiB) that no list may name."""
SCREEN_TOLERANCE_BYTES = 192 * MIB
"""The same of a GPU with a screen, for whose windows the driver takes memory that no list names: 300 to 440 MiB in the
tables of one machine. Less than a bare context."""
IDLE_LIMIT_BYTES = 1024 * MIB
"""More than this on a GPU without processes is not an idle driver's: a process is there that NVML does not name."""
UNSEEN_LIMIT_BYTES = 128 * MIB
"""The same where others' processes cannot be seen, or a trial of ours may have been there: less than a bare context."""
SCREEN_MAX_BYTES = 2048 * MIB
"""Somebody's process that draws, and holds no more, belongs to the screen, also if it computes (browsers do)."""
MPS_SERVER = "nvidia-cuda-mps-server"
"""Process through which trials compute where MPS is on; stays on each GPU, with about 30 MiB."""

Whose = Literal["ours", "foreign", "gone", "unseen"]

GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

T = TypeVar("T")


# ---------------------------------------------------------------- the rule


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a GPU. ``unseen``: in a container, where NVML's pids may be of outside.

    ``draws``: on the list of those that draw.
    """

    pid: int
    whose: Whose
    user: str = ""
    command: str = ""
    memory_bytes: int | None = None
    draws: bool = False

    @property
    def is_of_the_machine(self) -> bool:
        """Whether the process is the screen's or MPS's, which are in nobody's way."""
        is_small = (self.memory_bytes or 0) <= SCREEN_MAX_BYTES
        serves = self.draws or MPS_SERVER in self.command
        return serves and is_small and self.whose in ("foreign", "unseen")

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {show_bytes(self.memory_bytes)}"
        if self.whose == "unseen":
            return f"pid {self.pid} outside this container{size}"
        if self.whose != "gone":
            return f"pid {self.pid} ({self.user}: {self.command}{size})"
        known = f" ({self.user}: {self.command}{size})" if self.user else size and f" ({size[2:]})"
        return f"pid {self.pid}{known}, which has ended but still has a context"


@dataclass(frozen=True, slots=True)
class Seen:
    """A reading of a GPU: the processes on it and the memory in use, at one moment.

    ``at``: a time before which this reading was not begun. ``memory_bytes`` leaves out what the driver reserves for
    itself. ``vitals``: None where the reading failed; ``error``: why, a later one may not.
    """

    at: float
    holders: tuple[Holder, ...] = ()
    memory_bytes: int | None = None
    vitals: Vitals | None = None
    error: str = ""

    @property
    def own_bytes(self) -> int:
        """The memory in use without the screen's, which comes and goes with windows, and that of MPS."""
        machines = sum(one.memory_bytes or 0 for one in self.holders if one.is_of_the_machine)
        return max(0, (self.memory_bytes or 0) - machines)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement. ``is_free``: nobody is on the GPU; else ``why`` in words, and who is."""

    is_free: bool
    why: str = ""
    holders: tuple[Holder, ...] = ()


def judge(
    seen: Seen,
    idle_bytes: int,
    *,
    was_seen: bool = True,
    is_beside_trial: bool = False,
    is_beside_release: bool = False,
    is_late: bool = False,
) -> Verdict:
    """Judge one reading by (b) and (c).

    ``was_seen``: ``idle_bytes`` was read when nobody was there; else it is the most that an idle driver takes.
    ``is_late``: for longer than any driver takes to clean up, so that up to ``IDLE_LIMIT_BYTES`` beside a screen, where
    every process is named, are those of windows that were opened.

    For shares of a GPU: ``is_beside_trial``: another trial of ours has a share. No process of the trial in question is
    left, so those of ours that live are the other's, as is the memory that NVML says they have.
    ``is_beside_release``: this share was proven free, and another one's release continues, which judges what remains.
    """
    if seen.error:
        return Verdict(False, f"the GPU cannot be read: {seen.error}")
    if seen.memory_bytes is None:
        return Verdict(False, "NVML gives no memory figure, so no release could be confirmed")
    machines = [one for one in seen.holders if one.is_of_the_machine]
    unseen = [one for one in seen.holders if one.whose == "unseen" and one not in machines]
    found = [one for one in seen.holders if one not in (*machines, *unseen)]
    whose = ("ours",) * is_beside_trial + ("gone",) * is_beside_release
    others = [holder for holder in found if holder.whose in whose]
    holders = tuple(holder for holder in found if holder not in others)
    if holders:
        return Verdict(False, _held_by(holders), holders)
    if is_beside_release:
        return Verdict(True)
    excess = seen.own_bytes - idle_bytes - sum(other.memory_bytes or 0 for other in others)
    has_screen = any(one.draws for one in machines)
    windows_bytes = IDLE_LIMIT_BYTES if is_late and not unseen else SCREEN_TOLERANCE_BYTES
    if excess > (windows_bytes if has_screen and was_seen else TOLERANCE_BYTES):
        more = f"{show_bytes(excess + idle_bytes)} of memory in use"
        if was_seen:
            more = f"{show_bytes(excess)} more memory in use than when nobody was on it"
        unnamed = "and NVML names no process that holds it (`sudo fuser -v /dev/nvidia*` may)"
        return Verdict(False, f"{more}, {_held_by(unseen) if unseen else unnamed}")
    return Verdict(True)


def _held_by(holders: Sequence[Holder]) -> str:
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return f"held by {', '.join(map(str, holders[:3]))}{more}"


def learn(seen: Seen, known: int | None, limit_bytes: int) -> int | None:
    """Return the memory in use when nobody is on the GPU, from a reading of one that no trial has.

    The figure falls or stays, so that what leaks from trial to trial adds up and is noticed. Nothing is learnt while
    somebody may be there, or, beyond the first time, from a screen, whose windows come and go between two calls.
    """
    idle_bytes = limit_bytes if known is None else known
    if not judge(seen, idle_bytes, was_seen=known is not None).is_free:
        return known
    if known is None:
        return seen.own_bytes
    draws = any(one.draws for one in seen.holders)
    return known if draws else min(known, seen.own_bytes)


# ---------------------------------------------------------------- whose a process is


class Processes:
    """The machine's processes, as far as we may look at them. ``experiment``: the folder whose processes are ours.

    ``visible``: NVML's pids are those of this pid namespace, which holds outside of containers and with
    ``--pid=host``; None: find that out.
    """

    def __init__(self, experiment: Path | None = None, *, visible: bool | None = None) -> None:
        self.visible = in_initial_namespace("pid") if visible is None else visible
        self.experiment = None if experiment is None else os.fspath(experiment)
        #: When each process began, and its name.
        self._known: dict[int, tuple[float, Holder]] = {}

    def who(self, pid: int) -> Holder:
        """Name a process. Looked at once for each pid and start time; a zombie has ended."""
        if not self.visible:
            return Holder(pid, "unseen")
        try:
            process = psutil.Process(pid)
            began, has_ended = process.create_time(), process.status() in GONE
        except psutil.Error:  # ``hidepid`` hides the processes of others
            began, has_ended = 0.0, not _is_there(pid)
        known = self._known.get(pid)
        if has_ended:
            return replace(known[1], whose="gone") if known else Holder(pid, "gone")
        if known is None or known[0] != began:
            known = self._known[pid] = (began, self._look_at(pid))
        return known[1]

    def _look_at(self, pid: int) -> Holder:
        name = _ask(pid, psutil.Process.name) or "hidden"
        command = clean(" ".join(_ask(pid, psutil.Process.cmdline) or [name]), 60)
        user = _ask(pid, psutil.Process.username) or "unknown user"
        user = f"uid {user}" if user.isdecimal() else user
        return Holder(pid, "ours" if self._is_ours(pid) else "foreign", user, command)

    def _is_ours(self, pid: int) -> bool:
        """Look for the mark in the environment of the process or of an ancestor."""
        ancestors = [process.pid for process in _ask(pid, psutil.Process.parents) or ()]
        return any(self._is_marked(one) for one in (pid, *ancestors) if one > 1)

    def _is_marked(self, pid: int) -> bool:
        folder = (_ask(pid, psutil.Process.environ) or {}).get("GPUSCHED_DIR")
        return folder is not None and self.experiment in (None, folder)


def _is_there(pid: int) -> bool:
    """Tell whether a process is there, also one that ``/proc`` hides."""
    try:
        return os.getsid(pid) >= 0
    except (OSError, OverflowError):
        return False


def _ask(pid: int, question: Callable[[psutil.Process], T]) -> T | None:
    """Return psutil's answer about a process; None if it is gone, another user's, or keeps us waiting."""

    def answer(pid: int) -> T | None:
        try:
            return question(psutil.Process(pid))
        except (psutil.Error, OSError):
            return None

    return read_each([pid], answer).get(pid)

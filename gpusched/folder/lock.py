"""One daemon an experiment: a kernel lock that dies with its holder (reliability F6).

The lock file is never deleted, so two daemons can never hold locks on two files of the same name. Its text says who
holds it, for messages only.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from gpusched.errors import InputError

_PROBES_END_S = 0.5
"""How long ``take`` tries again: a probe (``is_locked``) shares the lock for an instant."""
_RETRY_S = 0.005


class Lock:
    """Held from ``take`` until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Raises InputError, naming the holder, if another process has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until_s = time.monotonic() + _PROBES_END_S
        while not _lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until_s:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise InputError(
                    f"{path.parent.name} has a daemon already ({holder}); 'gpusched watch {path.parent.name}' shows it"
                )
            time.sleep(_RETRY_S)
        text = json.dumps({"pid": os.getpid(), "since": time.strftime("%F %T")})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Let somebody else have it."""
        os.close(self._descriptor)


def is_locked(path: Path) -> bool:
    """Tell whether a process has taken the lock. Probes that meet do not see each other: they share the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Take the lock without waiting; False where another descriptor's lock excludes it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {found['pid']}, since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its pid is not known"

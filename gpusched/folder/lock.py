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


class Lock:
    """Held from ``take`` until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Lock:
        """Raises InputError, naming the holder, if another process has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise InputError(
                f"{path.parent.name} has a daemon already ({holder}); 'gpusched watch {path.parent.name}' shows it"
            ) from None
        text = json.dumps({"pid": os.getpid(), "since": time.strftime("%F %T")})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Let somebody else have it."""
        os.close(self._descriptor)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {found['pid']}, since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its pid is not known"

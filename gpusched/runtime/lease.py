"""How long a trial goes on without a daemon: then it saves and leaves, so that nothing holds devices for ever.

The shim counts from the last time a daemon spoke to it. When the lease is over it makes the file ``leave`` beside the
logs; rank 0 looks for it at each report for which it finds no daemon, and takes it for ``yield``. A daemon that comes
back in time takes it away again; one that comes later finds the trial yielded, and goes on from its checkpoint. A trial
that does not leave within ``HARD_FACTOR`` leases is ended: it hangs, or it never reports.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

LEASE_S = 120.0
HARD_FACTOR = 10.0


class Lease:
    """Times in seconds of the monotonic clock."""

    def __init__(self, leave: Path, lease_s: float = LEASE_S) -> None:
        self._leave = leave
        self._lease_s = lease_s
        self._heard_s = time.monotonic()
        self._asked = False

    def heard(self, now_s: float) -> None:
        """There is a daemon."""
        self._heard_s = now_s
        if self._asked:
            self._asked = False
            with suppress(OSError):
                self._leave.unlink(missing_ok=True)
            print("a daemon came back: the trial goes on", flush=True)

    def is_over(self, now_s: float) -> bool:
        """Ask the trial to leave if it is time for that; True if it must be ended."""
        alone_s = now_s - self._heard_s
        if alone_s > self._lease_s and not self._asked:
            self._asked = True
            print(f"no daemon for {alone_s:.0f} s: the trial is to save and leave", flush=True)
            with suppress(OSError):
                os.close(os.open(self._leave, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return alone_s > HARD_FACTOR * self._lease_s

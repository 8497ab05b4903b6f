"""What the daemon wants of a shim, and what follows from its silence.

A shim keeps a line to the newest daemon there is. Without one for too long the trial is to leave (``lease.py``); an
incarnation that was launched before it was due, and does not count yet, is ended as soon as its line is gone.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from gpusched.folder.epoch import read_epoch
from gpusched.protocol import Counts, Frame, Greeting, Stop
from gpusched.runtime.lease import Lease
from gpusched.runtime.link import DaemonLink

TERM_GRACE_S = 10.0
GREETING_S = 2.0
"""How long a daemon may take to say who it is; one that is stopped says nothing."""
_LOOK_S = 1.0


class Orders:
    """``link`` says hello; ``waits`` is the mark of an incarnation that does not count yet, None for any other."""

    def __init__(
        self, experiment: Path, epoch: int, link: DaemonLink, lease: Lease, waits: Path | None
    ) -> None:
        self._experiment = experiment
        self._link = link
        self._lease = lease
        self._waits = waits
        #: The highest epoch of a daemon that is known: an older one's word does not count.
        self.epoch = epoch
        #: It is to stop: the grace that its ranks have. None: it is not.
        self.stop_grace_s: float | None = None
        #: It is to stop because it hangs.
        self.hangs = False
        self._greet_by_s: float | None = None
        self._next_connect_s = 0.0

    def fileno(self) -> int:
        """Of the line; -1 without one."""
        return self._link.fileno()

    def stop(self, grace_s: float = TERM_GRACE_S) -> None:
        """It is to stop, whoever says so. A shorter grace counts."""
        known = self.stop_grace_s
        self.stop_grace_s = grace_s if known is None else min(grace_s, known)

    def connect(self) -> None:
        now = time.monotonic()
        if not self._link.connected and now >= self._next_connect_s:
            self._next_connect_s = now + _LOOK_S
            if self._link.connect():
                self._greet_by_s = now + GREETING_S

    def mind_the_daemon(self) -> None:
        """Keep a line to the newest daemon there is; without one for too long, the trial is to leave."""
        now = time.monotonic()
        if self._link.connected and now >= self._next_connect_s:
            self._next_connect_s = now + _LOOK_S
            newest = read_epoch(self._experiment)
            mute = self._greet_by_s is not None and now > self._greet_by_s
            if newest > self.epoch or mute:
                self.epoch = max(newest, self.epoch)
                self._link.close()
                self._next_connect_s = now
        self.connect()
        if self._link.connected and self._greet_by_s is None:
            self._lease.heard(now)
        elif self._lease.is_over(now):
            self.stop()
        if self._waits is not None and not self._link.connected:
            self.stop(0.0)

    def read(self) -> None:
        """Hear what has come."""
        for frame in self._link.read():
            self._heard(frame)

    def _heard(self, frame: Greeting | Stop | Counts) -> None:
        if isinstance(frame, Greeting):
            if frame.epoch < self.epoch:
                self._link.close()
            else:
                self.epoch, self._greet_by_s = frame.epoch, None
        elif self._greet_by_s is not None:
            return
        elif isinstance(frame, Counts):
            self._count()
        else:
            self.hangs = frame.stacks
            self.stop(frame.grace_s)

    def _count(self) -> None:
        if self._waits is not None:
            with suppress(OSError):
                self._waits.unlink(missing_ok=True)
            self._waits = None

    def tell(self, frame: Frame) -> None:
        """Say this to the daemon, if it is there."""
        self._link.send(frame)

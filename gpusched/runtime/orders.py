"""A shim and the daemon: the line between them, what the daemon wants, and what follows from its silence.

The daemon may be away, come back, or be stuck; a shim's work depends on none of that.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

from gpusched.folder.lock import Fence, read_epoch
from gpusched.folder.paths import TrialPaths, socket_address
from gpusched.protocol import (
    BadFrame,
    Frame,
    Greeting,
    Inbox,
    LaunchSpec,
    ShimHello,
    StopTree,
    encode,
    to_shim,
)

TERM_GRACE_S = 10.0
_LOOK_S = 1.0
HARD_FACTOR = 10.0
_READ_BYTES = 1 << 16


class Tether:
    """The limit to how long a trial continues without a daemon. Times in seconds of the monotonic clock.

    Past ``limit_s`` the file ``leave`` is made beside the logs: rank 0 looks for it at each report for which it finds
    no daemon, and takes it for ``yield``. A daemon that comes back in time takes the file away; one that comes later
    finds the trial yielded, and continues from its checkpoint. A trial that has not left after ``HARD_FACTOR`` times
    the limit is ended: it hangs, or it never reports.
    """

    def __init__(self, leave: Path, limit_s: float) -> None:
        self._leave = leave
        self._limit_s = limit_s
        self._heard_s = time.monotonic()
        self._asked = False

    def heard(self, now_s: float) -> None:
        """Count anew: a daemon is there."""
        self._heard_s = now_s
        if self._asked:
            self._asked = False
            with suppress(OSError):
                self._leave.unlink(missing_ok=True)
            print("a daemon came back: the trial continues", flush=True)

    def is_over(self, now_s: float) -> bool:
        """Ask the trial to leave if it is time for that; True if the trial must be ended."""
        alone_s = now_s - self._heard_s
        if alone_s > self._limit_s and not self._asked:
            self._asked = True
            print(f"no daemon for {alone_s:.0f} s: the trial is to save and leave", flush=True)
            with suppress(OSError):
                self._leave.touch(0o600)
        return alone_s > HARD_FACTOR * self._limit_s


class Orders:
    """Wishes of the daemon, and what follows from its silence.

    A shim keeps a line to the newest daemon, on which nothing waits: a full or broken one is closed, and made anew
    later. A daemon that has not greeted (a stopped one) is none. Without one, a raised ``fence`` ends the incarnation;
    with one the line is its lease, and the fence is read where something is written, not by every shim all the time.
    """

    def __init__(self, spec: LaunchSpec, paths: TrialPaths, hello: ShimHello, fence: Fence) -> None:
        self._experiment = Path(spec.experiment_dir)
        self._hello = hello
        self._fence = fence
        self._next_look_s = 0.0
        self._tether = Tether(paths.leave(spec.incarnation), spec.tether_s)
        self._line: socket.socket | None = None
        self._inbox = Inbox(to_shim)
        self._is_greeted = False
        #: The highest epoch of a daemon that is known: an older one's word does not count.
        self.epoch = spec.epoch
        #: Grace of the ranks, once the incarnation is to stop; None before.
        self.stop_grace_s: float | None = None
        #: Whether it is to stop because it hangs.
        self.hangs = False

    def fileno(self) -> int:
        """Descriptor of the line; -1 without one."""
        return -1 if self._line is None else self._line.fileno()

    def stop(self, grace_s: float = TERM_GRACE_S) -> None:
        """Have the incarnation stop. The shortest grace counts."""
        known = self.stop_grace_s
        self.stop_grace_s = grace_s if known is None else min(grace_s, known)

    def mind_the_daemon(self) -> None:
        """Keep a line to the newest daemon there is; without one for too long, the trial is to leave."""
        now = time.monotonic()
        if now >= self._next_look_s:
            self._next_look_s = now + _LOOK_S
            if not self._is_greeted and self._fence.is_raised:
                self.stop(0.0)
            newest = read_epoch(self._experiment)
            if newest > self.epoch:
                self.epoch = newest
                self._hang_up()
            self.connect()
        if self._is_greeted:
            self._tether.heard(now)
        elif self._tether.is_over(now):
            self.stop()

    # ------------------------------------------------------------------ the line

    def connect(self) -> None:
        """Connect and say hello, if a daemon listens."""
        if self._line is not None:
            return
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.setblocking(False)
        try:
            with socket_address(self._experiment / "daemon.sock") as address:
                line.connect(address)
        except OSError:
            line.close()
            return
        self._line, self._inbox = line, Inbox(to_shim)
        self.tell(self._hello)

    def tell(self, frame: Frame) -> None:
        """Send a frame to the daemon, if it is there. Where the kernel does not take all of it the line is closed."""
        if self._line is None:
            return
        data = encode(frame)
        try:
            if self._line.send(data) == len(data):
                return
        except OSError:
            pass
        self._hang_up()

    def read(self) -> None:
        """Obey the frames that have come. A line that ended, or on which no frame came, is closed."""
        if self._line is None:
            return
        try:
            data = self._line.recv(_READ_BYTES)
            for frame in self._inbox.feed(data):
                self._heard(frame)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            data = b""
        if not data:
            self._hang_up()

    def _heard(self, frame: Greeting | StopTree) -> None:
        if isinstance(frame, Greeting):
            if frame.epoch < self.epoch:
                self._hang_up()
            else:
                self.epoch, self._is_greeted = frame.epoch, True
        elif self._is_greeted:
            self.hangs = frame.stacks
            self.stop(frame.grace_s)

    def _hang_up(self) -> None:
        self._is_greeted = False
        if self._line is not None:
            self._line.close()
            self._line = None

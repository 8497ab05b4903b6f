"""Rank 0's line to the daemon: one frame a report, one reply; never in the training's way.

Rules: a report is sent once and answered once. If the daemon is away, or goes away while a report waits, the
answer is ``continue`` and a later report tries to connect again, less and less often. Nothing is sent twice: a daemon
that comes back reads the trial's own ``reports.jsonl``. Only the last unsent "saved" frame is kept, because it tells of
a checkpoint and saying it late does no harm.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpusched.folder.lock import read_epoch
from gpusched.folder.paths import socket_address
from gpusched.protocol import (
    Answer,
    BadFrame,
    Frame,
    Go,
    Greeting,
    Inbox,
    RankHello,
    Remark,
    Report,
    Saved,
    encode,
    to_rank,
)

REPLY_WAIT_S = 30.0
"""A daemon that is silent for so long is taken for dead; a live one answers within milliseconds."""

_LOOK_S = 1.0
"""How often a waiting rank looks whether another daemon has taken over."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.5
_LONGEST_MUTE_S = 600.0
_READ_BYTES = 4096


class Channel:
    """A unix socket to ``daemon.sock`` that may come and go. Belongs to the process that made it."""

    def __init__(
        self, folder: Path, trial: int, incarnation: int, leave: Path | None = None
    ) -> None:
        """``leave``: without a daemon this file says that the trial is to save and leave (``runtime/orders.py``)."""
        self._leave = leave
        self._folder = folder
        self._hello = encode(RankHello(trial, incarnation))
        self._socket: socket.socket | None = None
        self._inbox = Inbox(to_rank)
        self._pause_s = _FIRST_PAUSE_S
        self._not_before_s = 0.0
        self._unsent: bytes | None = None
        self._epoch = 0
        self._mute_pause_s = REPLY_WAIT_S
        #: Held by whoever sends, connects or closes: checkpoints are told of by a thread of their own.
        self._lock = threading.Lock()
        #: A thread waits for an answer on the socket; that thread alone may close it.
        self._is_awaited = False
        os.register_at_fork(after_in_child=self._forget)

    def connect(self) -> bool:
        """Connect and say hello, unless the last attempt was too short ago. False: the daemon is away."""
        if self._socket is not None:
            return True
        if time.monotonic() < self._not_before_s:
            return False
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(_LOOK_S)
        try:
            with socket_address(self._folder / "daemon.sock") as address:
                line.connect(address)
            _let_the_kernel_time(line)
            line.sendall(self._hello + (self._unsent or b""))
        except OSError:
            line.close()
            self._not_before_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return False
        self._socket, self._inbox, self._unsent = line, Inbox(to_rank), None
        self._pause_s = _FIRST_PAUSE_S
        return True

    def report(self, report: Report) -> Go:
        """Send a report and wait for the daemon's answer; ``continue`` without a daemon."""
        if self._ask(report):
            for frame in self._frames(REPLY_WAIT_S):
                if isinstance(frame, Answer) and frame.seq == report.seq:
                    self._is_awaited = False
                    self._mute_pause_s = REPLY_WAIT_S
                    return frame.go
        return self._alone()

    def _alone(self) -> Go:
        """Return the answer to a report when no daemon gives one."""
        return "yield" if self._leave is not None and self._leave.exists() else "continue"

    def _is_worth_waiting_for(self, until_s: float) -> bool:
        """Tell whether the daemon that says nothing is the newest, and has not been silent for too long."""
        if read_epoch(self._folder) > self._epoch:
            return False
        if time.monotonic() < until_s:
            return True
        # The daemon is stopped, perhaps for long: training stands still for it less and less often.
        self._not_before_s = time.monotonic() + self._mute_pause_s
        self._mute_pause_s = min(2 * self._mute_pause_s, _LONGEST_MUTE_S)
        return False

    def saved(self, step: int, save_s: float, size_bytes: int) -> None:
        """Tell of a committed checkpoint, from any thread; kept for the next connection if the daemon is away."""
        data = encode(Saved(step, round(save_s, 6), size_bytes))
        with self._lock:
            if not self.connect() or not self._send(data):
                self._unsent = data

    def tell(self, frame: Remark) -> None:
        """Tell the daemon something that is of no use later; lost if the daemon is away."""
        with self._lock:
            if self.connect():
                self._send(encode(frame))

    def close(self) -> None:
        """Close this process's copy of the line."""
        with self._lock:
            self._close()

    def _forget(self) -> None:
        """Close the copy of a forked child, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, frame: Frame) -> bool:
        """Send a frame whose answer this thread will wait for with ``_frames``."""
        with self._lock:
            self._is_awaited = False
            self._is_awaited = self.connect() and self._send(encode(frame))
            return self._is_awaited

    def _send(self, data: bytes) -> bool:
        assert self._socket is not None
        try:
            self._socket.sendall(data)
        except OSError:
            if self._is_awaited:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            else:
                self._close()
            return False
        return True

    def _frames(self, patience_s: float) -> Iterator[Frame]:
        """Frames of the daemon that was asked, until the line to it is gone (and closed)."""
        until_s = time.monotonic() + patience_s
        connection, inbox = self._socket, self._inbox
        data = b""
        with suppress(OSError, BadFrame):
            while connection is not None:
                for frame in inbox.feed(data):
                    if isinstance(frame, Greeting):
                        self._epoch = max(self._epoch, frame.epoch)
                    yield frame
                try:
                    data = connection.recv(_READ_BYTES)
                except BlockingIOError:  # nothing for _LOOK_S
                    if not self._is_worth_waiting_for(until_s):
                        break
                    data = b""
                    continue
                if not data:
                    break
        with self._lock:
            self._is_awaited = False
            self._close()


def _let_the_kernel_time(line: socket.socket) -> None:
    """Have the kernel time out by itself: ``settimeout`` costs a second system call each time."""
    line.settimeout(None)
    limit = struct.pack("@ll", int(_LOOK_S), 0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

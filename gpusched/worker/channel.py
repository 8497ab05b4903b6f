"""Rank 0's line to the daemon: one frame a report, one reply; never in the training's way.

Rules: a report is sent once and answered once. If the daemon is away, goes away while we wait, or talks nonsense, the
answer is ``continue`` and a later report tries to connect again, less and less often. Nothing is sent twice: a daemon
that comes back reads the trial's own ``reports.jsonl``. Only the last unsent "saved" frame is kept, because it tells of
a checkpoint and saying it late does no harm.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from gpusched.folder.epoch import read_epoch
from gpusched.folder.paths import socket_address
from gpusched.journal import compact

Go = Literal["continue", "save", "yield", "leave"]
GO: tuple[Go, ...] = ("continue", "save", "yield", "leave")

REPLY_WAIT_S = 30.0
"""A daemon that says nothing for so long is taken for dead. It answers within milliseconds."""

FOREVER = float("inf")

_LOOK_S = 1.0
"""How often, while it says nothing, it is looked whether another daemon has taken over."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.5
_LONGEST_MUTE_S = 600.0
_FRAME_LIMIT_BYTES = 1 << 16
_READ_BYTES = 4096


class Channel:
    """A unix socket to ``daemon.sock`` that may come and go. Belongs to the process that made it."""

    def __init__(
        self, folder: Path, trial: int, incarnation: int, leave: Path | None = None
    ) -> None:
        """``leave``: a file that says, while no daemon is there, that the trial is to save and leave (``lease.py``)."""
        self._leave = leave
        self._folder = folder
        self._pid = os.getpid()
        hello = {"hello": "rank", "trial": trial, "incarnation": incarnation, "pid": self._pid}
        self._hello = _frame(hello)
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._pause_s = _FIRST_PAUSE_S
        self._not_before_s = 0.0
        self._unsent: bytes | None = None
        self._epoch = 0
        self._mute_pause_s = REPLY_WAIT_S
        #: Held by whoever sends, connects or closes: checkpoints are told of by a thread of their own.
        self._lock = threading.Lock()
        #: A thread waits for an answer on the socket; that thread alone may close it.
        self._is_awaited = False
        #: The daemon has said that this trial is to leave soon.
        self.leaves_soon = False
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
        self._socket, self._buffer, self._unsent = line, b"", None
        self._pause_s = _FIRST_PAUSE_S
        return True

    def report(
        self, seq: int, step: int, step_time_s: float | None, metrics: Mapping[str, object]
    ) -> Go:
        """Send a report and wait for what the daemon says; ``continue`` where it says nothing."""
        frame = {"report": seq, "step": step, "step_time_s": step_time_s, "metrics": metrics}
        if not self._ask(_frame(frame)):
            return self._alone()
        while (line := self._line()) is not None:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                reply = compact.decode(line.decode())
                if "epoch" in reply:
                    self._epoch = max(self._epoch, int(reply["epoch"]))
                elif reply["seq"] == seq:
                    self._mute_pause_s = REPLY_WAIT_S
                    self.leaves_soon = "soon" in reply
                    return cast(Go, reply["go"]) if reply["go"] in GO else "continue"
        return self._alone()

    def _alone(self) -> Go:
        """What to do when no daemon answers."""
        return "yield" if self._leave is not None and self._leave.exists() else "continue"

    def _is_worth_waiting_for(self, until_s: float) -> bool:
        """Whether the daemon that says nothing is the newest, and has not been silent for too long."""
        if read_epoch(self._folder) > self._epoch:
            return False
        if time.monotonic() < until_s:
            return True
        # It is stopped, and may be for long: training stands still less and less often for it.
        self._not_before_s = time.monotonic() + self._mute_pause_s
        self._mute_pause_s = min(2 * self._mute_pause_s, _LONGEST_MUTE_S)
        return False

    def saved(self, step: int, save_s: float, size_bytes: int) -> None:
        """Tell of a committed checkpoint, from any thread; kept for the next connection if the daemon is away."""
        frame = _frame({"saved": step, "save_s": round(save_s, 6), "bytes": size_bytes})
        with self._lock:
            if not self.connect() or not self._send(frame):
                self._unsent = frame

    def handed(self, parcel: Mapping[str, int]) -> None:
        """Tell of a checkpoint that the next incarnation may restore from; of no use to anybody later."""
        with self._lock:
            if self.connect():
                self._send(_frame(parcel))

    def wait_for(self, key: str) -> Any:
        """Say that all ranks wait for this word, and wait as long as it takes; None if the daemon is not there."""
        if not self._ask(_frame({"waits": True})):
            return None
        while (line := self._line(FOREVER)) is not None:
            with suppress(ValueError, TypeError, RecursionError):
                frame = json.loads(line)
                if key in frame:
                    return frame[key]
                self._epoch = max(self._epoch, int(frame.get("epoch", 0)))
        return None

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

    def _ask(self, data: bytes) -> bool:
        """Send a frame whose answer this thread will wait for with ``_line``."""
        with self._lock:
            self._is_awaited = False
            self._is_awaited = self.connect() and self._send(data)
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

    def _line(self, patience_s: float | None = None) -> bytes | None:
        """The next whole line; None when the line to the daemon is gone (and closed)."""
        until_s = time.monotonic() + (REPLY_WAIT_S if patience_s is None else patience_s)
        connection = self._socket
        while b"\n" not in self._buffer:
            try:
                data = connection.recv(_READ_BYTES) if connection else b""
            except BlockingIOError:  # nothing for _LOOK_S
                if self._is_worth_waiting_for(until_s):
                    continue
                data = b""
            except OSError:
                data = b""
            if not data or len(self._buffer) > _FRAME_LIMIT_BYTES:
                with self._lock:
                    self._is_awaited = False
                    self._close()
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _let_the_kernel_time(line: socket.socket) -> None:
    """``settimeout`` asks the kernel twice for each call: may I, and do it."""
    line.settimeout(None)
    limit = struct.pack("@ll", int(_LOOK_S), 0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _frame(values: Mapping[str, object]) -> bytes:
    return compact.encode(values).encode() + b"\n"

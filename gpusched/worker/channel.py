"""Rank 0's line to the daemon: one frame a report, one reply; never in the training's way. Metrics made plain.

Rules: a report is sent once and answered once. If the daemon is away, or goes away while a report waits, the
answer is ``continue`` and a later report tries to connect again. Nothing is sent twice: a daemon
that comes back reads the trial's own ``reports.jsonl``. Only the last unsent "saved" frame is kept, because it tells of
a checkpoint and saying it late does no harm.
"""

from __future__ import annotations

import math
import numbers
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.folder.lock import read_epoch
from gpusched.folder.paths import socket_address
from gpusched.protocol import (
    Answer,
    BadFrame,
    Go,
    Greeting,
    Inbox,
    Metric,
    RankHello,
    Remark,
    Report,
    Saved,
    as_metric,
    encode,
    to_rank,
)
from gpusched.text import nearest

REPLY_WAIT_S = 30.0
"""A daemon that is silent for so long is taken for dead; a live one answers within milliseconds."""

_LOOK_S = 1.0
"""How often a waiting rank looks whether another daemon has taken over."""

_PAUSE_S = 0.5
"""Time until the next attempt to reach a daemon that is away."""
_MUTE_S = 60.0
"""Time without an attempt after a daemon was silent: it is stopped, perhaps for long, and training stood still."""
_READ_BYTES = 4096


class Channel:
    """A unix socket to ``daemon.sock`` that may come and go. For the process that made it; a fork has no use for it."""

    def __init__(
        self, folder: Path, trial: int, incarnation: int, leave: Path | None = None
    ) -> None:
        """``leave``: without a daemon this file says that the trial is to save and leave (``runtime/orders.py``)."""
        self._leave = leave
        self._folder = folder
        self._hello = encode(RankHello(trial, incarnation))
        self._socket: socket.socket | None = None
        self._inbox = Inbox(to_rank)
        self._not_before_s = 0.0
        self._unsent: bytes | None = None
        self._epoch = 0
        #: Held by whoever sends, connects or closes: checkpoints are told of by a thread of their own.
        self._lock = threading.Lock()
        #: A thread waits for an answer on the socket; that thread alone may close it.
        self._is_awaited = False

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
            line.sendall(self._hello + (self._unsent or b""))
        except OSError:
            line.close()
            self._not_before_s = time.monotonic() + _PAUSE_S
            return False
        self._socket, self._inbox, self._unsent = line, Inbox(to_rank), None
        return True

    def report(self, report: Report) -> Go:
        """Send a report and wait for the daemon's answer; ``continue`` without a daemon."""
        with self._lock:
            self._is_awaited = False
            self._is_awaited = self.connect() and self._send(encode(report))
            connection, inbox = self._socket, self._inbox
        if self._is_awaited and connection is not None:
            with suppress(OSError, BadFrame):
                if (go := self._answer(connection, inbox, report.seq)) is not None:
                    self._is_awaited = False
                    return go
            with self._lock:
                self._is_awaited = False
                self._close()
        return "yield" if self._leave is not None and self._leave.exists() else "continue"

    def _answer(self, connection: socket.socket, inbox: Inbox, seq: int) -> Go | None:
        """Wait for the answer of the daemon that was asked; None once it is gone, followed by another, or silent."""
        until_s = time.monotonic() + REPLY_WAIT_S
        data = b""
        while True:
            for frame in inbox.feed(data):
                if isinstance(frame, Greeting):
                    self._epoch = max(self._epoch, frame.epoch)
                elif isinstance(frame, Answer) and frame.seq == seq:
                    return frame.go
            try:
                data = connection.recv(_READ_BYTES)
            except TimeoutError:  # nothing for _LOOK_S
                if read_epoch(self._folder) > self._epoch:
                    return None
                if time.monotonic() >= until_s:
                    self._not_before_s = time.monotonic() + _MUTE_S
                    return None
                data = b""
            else:
                if not data:
                    return None

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

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

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


def clean_metrics(metrics: Mapping[str, object], wanted: str | None) -> dict[str, Metric]:
    """Return the metrics as plain numbers; tensors and numpy scalars of one element are taken.

    Raises:
        TypeError: A metric is not a number.
        ValueError: The metric that the recipe searches by is missing.
    """
    if wanted is not None and wanted not in metrics:
        instead = nearest(wanted, metrics, 0.5) or next(iter(metrics), None)
        has = f"has {', '.join(metrics)} but not" if metrics else "lacks"
        fix = f", or write `metric: {instead}` in the recipe" if instead else ""
        raise ValueError(
            f"this report {has} {wanted!r}, by which the recipe searches: call trial.report({wanted}=...){fix}. If "
            f"only some epochs measure it, report those alone, with step=epoch + 1"
        )
    return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: object) -> Metric:
    plain: Any = value
    if not isinstance(value, numbers.Real):
        item = getattr(value, "item", None)
        if callable(item):
            shape = tuple(getattr(value, "shape", ()))
            if math.prod(shape) != 1:
                raise TypeError(
                    f"metric {name!r} has shape {shape}: report one number, e.g. {name}.mean()"
                )
            plain = item()
        if not isinstance(plain, numbers.Real):
            text = repr(value)
            told = text if len(text) <= 40 else f"{text[:37]}..."
            raise TypeError(
                f"metric {name!r} is {type(value).__name__} {told}, not a number: report a float, an int or a tensor "
                f"of one element"
            )
    if isinstance(plain, numbers.Integral) and abs(int(plain)) < 1 << 63:
        return int(plain)
    return as_metric(float(plain))


def shown(report: Report) -> str:
    """Word a report as a line for people, where no daemon takes it."""
    parts = [
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in report.metrics.items()
    ]
    return "  ".join([f"step {report.step}", *parts, f"({report.step_time_s:.2f} s)"])

"""One connection of the hub: newline-delimited JSON that never blocks.

What cannot be written at once is kept up to a limit; beyond it the connection is closed, so a reader that sleeps costs
itself, nobody else. A frame that is too long, or is no JSON object, closes its connection alone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpusched.journal import compact

WORKER_FRAME_BYTES = 64 << 10
CLIENT_FRAME_BYTES = 1 << 20
_READ_BYTES = 4096
_WORKER_BACKLOG_BYTES = 64 << 10
_CLIENT_BACKLOG_BYTES = 8 << 20

Frame = dict[str, Any]


class Loop(Protocol):
    """What a connection needs of the hub."""

    def watch_writing(self, descriptor: int, wanted: bool) -> None: ...

    def forget(self, descriptor: int) -> None: ...

    def introduce(self, peer: Peer, hello: Frame) -> None: ...


class Peer:
    """One connection. ``on_frame`` and ``on_end`` belong to whoever took it; ``send`` never blocks."""

    __slots__ = (
        "_buffer",
        "_frame_limit",
        "_hub",
        "_out",
        "_out_limit",
        "_socket",
        "fd",
        "on_end",
        "on_frame",
        "pid",
    )

    def __init__(self, hub: Loop, line: socket.socket, pid: int) -> None:
        self._hub = hub
        self._socket = line
        self.fd = line.fileno()
        self.pid = pid
        self._buffer = b""
        self._out = bytearray()
        self._frame_limit = WORKER_FRAME_BYTES
        self._out_limit = _WORKER_BACKLOG_BYTES
        self.on_frame: Callable[[Frame], None] = self._on_hello
        self.on_end: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self.fd < 0

    def be_client(self) -> None:
        """Clients may ask for more, and be sent more, than workers."""
        self._frame_limit = CLIENT_FRAME_BYTES
        self._out_limit = _CLIENT_BACKLOG_BYTES

    def send(self, frame: Mapping[str, Any]) -> bool:
        """False if the other side is gone or does not read."""
        return self.send_bytes(json.dumps(frame, separators=(",", ":")).encode() + b"\n")

    def send_bytes(self, data: bytes) -> bool:
        """``send`` for a frame made before."""
        if self.fd < 0:
            return False
        if not self._out:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return False
            if sent == len(data):
                return True
            data = data[sent:]
            self._hub.watch_writing(self.fd, True)
        self._out += data
        if len(self._out) > self._out_limit:
            self.close()
            return False
        return True

    def flush(self) -> None:
        """The other side reads again."""
        try:
            sent = self._socket.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        del self._out[:sent]
        if not self._out:
            self._hub.watch_writing(self.fd, False)

    def read(self) -> bool:
        """Take in what has come, at most ``_READ_BYTES`` of it. False if nothing was there."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        if self._buffer:
            data = self._buffer + data
        at = 0
        end = data.find(b"\n")
        while end >= 0:
            try:
                frame = compact.decode(data[at:end].decode())
            except (ValueError, RecursionError):
                self.close()
                return True
            if not isinstance(frame, dict):
                self.close()
                return True
            self.on_frame(frame)
            if self.fd < 0:
                return True
            at = end + 1
            end = data.find(b"\n", at)
        self._buffer = data[at:]
        if len(self._buffer) > self._frame_limit:
            self.close()
        return True

    def drain(self, most_bytes: int = 1 << 20) -> None:
        """Take in what has come, all of it: before a trial is declared gone, its last frames count."""
        for _ in range(most_bytes // _READ_BYTES):
            if self.fd < 0 or not self.read():
                return

    def close(self) -> None:
        """Twice is as good as once; ``on_end`` is called once."""
        if self.fd < 0:
            return
        self._hub.forget(self.fd)
        self.fd = -1
        self._socket.close()
        self._buffer = b""
        self._out.clear()
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def _on_hello(self, frame: Frame) -> None:
        self._hub.introduce(self, frame)


class Client:
    """A person's command, or somebody watching: what the daemon sees of a client's connection."""

    __slots__ = ("_peer", "on_close")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.on_close: Callable[[], None] | None = None
        peer.on_end = self._ended

    @property
    def closed(self) -> bool:
        return self._peer.closed

    def send(self, frame: Mapping[str, Any]) -> bool:
        """False if it has gone or does not read; it is dropped then."""
        return self._peer.send(frame)

    def close(self) -> None:
        self._peer.close()

    def _ended(self) -> None:
        if self.on_close is not None:
            self.on_close()

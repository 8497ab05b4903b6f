"""One connection of the hub: frames (``protocol``) that are never waited for.

What cannot be written at once is kept up to a limit; beyond it the connection is closed, so a reader that sleeps harms
itself alone. So does a sender of a frame that is too long, malformed or of a kind that it may not send.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpusched.protocol import Frame
from gpusched.protocol.lines import CLIENT_FRAME_BYTES, BadFrame, Decode, Inbox, encode

if TYPE_CHECKING:
    from gpusched.executors.hub import Hub

_READ_BYTES = 4096
_WORKER_BACKLOG_BYTES = 64 << 10
_CLIENT_BACKLOG_BYTES = 8 << 20


class Peer:
    """One connection. Whoever takes it says with ``hear`` what may be sent; ``on_end`` is called once.

    ``fault``: why the connection was closed, if the other side sent a bad frame.
    """

    def __init__(self, hub: Hub, line: socket.socket, decode_hello: Decode) -> None:
        self._hub = hub
        self._socket = line
        self.fd = line.fileno()
        self._inbox = Inbox(decode_hello)
        self._out = bytearray()
        self._out_limit = _WORKER_BACKLOG_BYTES
        self._on_frame: Callable[[Any], None] = self._on_hello
        self.fault = ""
        self.on_end: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self.fd < 0

    def hear(self, decode: Decode, on_frame: Callable[[Any], None]) -> None:
        """Expect, from the next frame on, those that ``decode`` knows, and give them to ``on_frame``."""
        self._inbox.decode, self._on_frame = decode, on_frame

    def be_client(self, backlog_bytes: int = _CLIENT_BACKLOG_BYTES) -> None:
        """Allow the frames and the backlog of a client, which are larger than a worker's."""
        self._inbox.limit_bytes = CLIENT_FRAME_BYTES
        self._out_limit = backlog_bytes

    def send(self, frame: Frame) -> bool:
        """Send a frame, or keep it until the other side reads. False if that is gone or never reads."""
        if self.fd < 0:
            return False
        data = encode(frame)
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
        """Send what was kept back, as the other side reads again."""
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
        try:
            for frame in self._inbox.feed(data):
                self._on_frame(frame)
                if self.fd < 0:
                    return True
        except BadFrame as problem:
            self.fault = str(problem)
            self.close()
        return True

    def drain(self, most_bytes: int = 1 << 20) -> None:
        """Take in what has come, all of it: before a trial is declared gone, its last frames count."""
        for _ in range(most_bytes // _READ_BYTES):
            if self.fd < 0 or not self.read():
                return

    def close(self) -> None:
        """Close the connection and call ``on_end``; a second call does nothing."""
        if self.fd < 0:
            return
        self._hub.forget(self.fd)
        self.fd = -1
        self._socket.close()
        self._out.clear()
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def _on_hello(self, hello: Any) -> None:
        self._hub.introduce(self, hello)

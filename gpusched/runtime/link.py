"""A shim's line to the daemon: newline-delimited JSON over ``daemon.sock``, never waited for.

The daemon may be away, come back, or be stuck; a shim's work depends on none of that. So everything here is
non-blocking, a full or broken line is closed, and ``connect`` is simply tried again later.
"""

from __future__ import annotations

import socket
from pathlib import Path

from gpusched.folder.paths import socket_address
from gpusched.protocol import (
    BadFrame,
    Counts,
    Frame,
    Greeting,
    Inbox,
    ShimHello,
    Stop,
    encode,
    to_shim,
)

_READ_BYTES = 1 << 16


class DaemonLink:
    """Connects as ``hello``; hands out the frames that came in."""

    def __init__(self, folder: Path, hello: ShimHello) -> None:
        self._folder = folder
        self._hello = hello
        self._socket: socket.socket | None = None
        self._inbox = Inbox(to_shim, is_lenient=True)

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> bool:
        """Try once."""
        if self._socket is not None:
            return True
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.setblocking(False)
        try:
            with socket_address(self._folder / "daemon.sock") as address:
                line.connect(address)
        except OSError:
            line.close()
            return False
        self._socket = line
        self._inbox = Inbox(to_shim, is_lenient=True)
        return self.send(self._hello)

    def send(self, frame: Frame) -> bool:
        """False if it could not be handed over whole; the line is closed then."""
        if self._socket is None:
            return False
        data = encode(frame)
        try:
            if self._socket.send(data) == len(data):
                return True
        except OSError:
            pass
        self.close()
        return False

    def read(self) -> list[Greeting | Stop | Counts]:
        """The frames that have come; a line that ended, or on which comes what is no frame, is closed."""
        if self._socket is None:
            return []
        frames: list[Greeting | Stop | Counts] = []
        try:
            data = self._socket.recv(_READ_BYTES)
            frames += self._inbox.feed(data)
        except BlockingIOError:
            return []
        except (OSError, BadFrame):
            data = b""
        if not data:
            self.close()
        return frames

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

"""A shim's line to the daemon: newline-delimited JSON over ``daemon.sock``, never waited for.

The daemon may be away, come back, or be stuck; a shim's work depends on none of that. So everything here is
non-blocking, a full or broken line is closed, and ``connect`` is simply tried again later.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.folder.paths import socket_address

_FRAME_LIMIT_BYTES = 1 << 16


class DaemonLink:
    """Connects as ``hello``; hands out the frames that came in."""

    def __init__(self, folder: Path, hello: Mapping[str, Any]) -> None:
        self._folder = folder
        self._hello = hello
        self._socket: socket.socket | None = None
        self._buffer = b""

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
        self._buffer = b""
        return self.send(self._hello)

    def send(self, frame: Mapping[str, Any]) -> bool:
        """False if it could not be handed over whole; the line is closed then."""
        if self._socket is None:
            return False
        data = json.dumps(frame).encode() + b"\n"
        try:
            if self._socket.send(data) == len(data):
                return True
        except OSError:
            pass
        self.close()
        return False

    def read(self) -> list[dict[str, Any]]:
        """The frames that have come; a line that ended or talks nonsense is closed."""
        if self._socket is None:
            return []
        try:
            data = self._socket.recv(_FRAME_LIMIT_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        frames: list[dict[str, Any]] = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                frame = json.loads(line)
                if isinstance(frame, dict):
                    frames.append(frame)
        if len(self._buffer) > _FRAME_LIMIT_BYTES:
            self.close()
        return frames

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

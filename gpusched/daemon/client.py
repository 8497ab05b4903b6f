"""Talking to a daemon: one JSON object a line over ``daemon.sock`` (docs/contracts.md).

Used by the commands. A daemon that is not there is not an error here: ``connect`` then returns None.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpusched.errors import GpuschedError, InputError
from gpusched.folder.paths import socket_address

FRAME_LIMIT_BYTES = 16 * 1024 * 1024


class DaemonGone(GpuschedError):
    """The daemon ended before it answered."""


class Client:
    """A connection to the daemon of one experiment."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    @classmethod
    def connect(cls, path: Path, timeout_s: float = 5.0) -> Client | None:
        """Connect to the socket at ``path``; None if nobody answers there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            with socket_address(path) as address:
                connection.connect(address)
            connection.sendall(b'{"hello":"client"}\n')
        except OSError:
            connection.close()
            return None
        return cls(connection)

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Ask and return the answer. Raises what the daemon answers with, and DaemonGone if it ends first."""
        self.send(verb, **arguments)
        answer = self.receive()
        if answer is None:
            raise DaemonGone(
                "the daemon went away before it answered; 'gpusched status' tells more"
            )
        if "error" in answer:
            error: GpuschedError = InputError(answer["error"])
            error.exit_code = int(answer.get("exit_code", 2))
            raise error
        return answer.get("ok")

    def send(self, verb: str, **arguments: Any) -> None:
        line = json.dumps({"ask": verb, **arguments}).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._connection.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """The next frame; None when the daemon is gone. Raises TimeoutError while it is silent."""
        while (end := self._buffer.find(b"\n")) < 0:
            try:
                data = self._connection.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data or len(self._buffer) > FRAME_LIMIT_BYTES:
                return None
            self._buffer += data
        frame: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        return frame

    def frames(self) -> Iterator[dict[str, Any]]:
        """Frames until the daemon is gone."""
        while (frame := self.receive()) is not None:
            yield frame

    def set_timeout(self, timeout_s: float | None) -> None:
        self._connection.settimeout(timeout_s)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

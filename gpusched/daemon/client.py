"""A command's end of ``daemon.sock`` (frames: ``protocol.py``).

A daemon that is not there is not an error here: ``connect`` then returns None.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpusched.errors import GpuschedError, InputError
from gpusched.folder.paths import socket_address
from gpusched.protocol import (
    ANSWER_FRAME_BYTES,
    Ask,
    BadFrame,
    ClientHello,
    Done,
    Inbox,
    Lines,
    Refused,
    Shown,
    encode,
    to_client,
)


class DaemonGone(GpuschedError):
    """The daemon ended before it answered."""


class Client:
    """A connection to the daemon of one experiment."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox = Inbox(to_client, ANSWER_FRAME_BYTES)

    @classmethod
    def connect(cls, path: Path, timeout_s: float = 5.0) -> Client | None:
        """Connect to the socket at ``path``; None if nobody answers there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            with socket_address(path) as address:
                connection.connect(address)
            connection.sendall(encode(ClientHello()))
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
        if isinstance(answer, Refused):
            error: GpuschedError = InputError(answer.error)
            error.exit_code = answer.exit_code
            raise error
        return answer.answer if isinstance(answer, Done) else None

    def send(self, verb: str, **arguments: Any) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(Ask(verb, **arguments)))

    def receive(self) -> Done | Refused | Shown | Lines | None:
        """The next frame; None when the daemon is gone. Raises TimeoutError while it is silent."""
        data = b""
        with contextlib.suppress(ConnectionError, BadFrame):
            while True:
                for frame in self._inbox.feed(data):
                    return frame  # type: ignore[no-any-return]
                data = self._connection.recv(1 << 16)
                if not data:
                    break
        return None

    def frames(self) -> Iterator[Done | Refused | Shown | Lines]:
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

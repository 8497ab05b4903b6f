"""A search seen from outside: whether its daemon lives, where it stands, and requests to it (``Client``).

Reads through the daemon's socket while one lives; straight from the files only when none does (the journal has one
connection, the daemon's).
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

from gpusched.errors import GpuschedError, InputError
from gpusched.folder.files import read_json
from gpusched.folder.find import as_argument, has_daemon
from gpusched.folder.lock import holder_elsewhere
from gpusched.folder.paths import ExperimentPaths, socket_address
from gpusched.protocol import (
    ANSWER_FRAME_BYTES,
    Ask,
    BadFrame,
    Done,
    Inbox,
    Lines,
    Refused,
    Shown,
    encode,
    to_client,
)

#: How long a daemon may take to answer, or hold its lock without listening; its disk may be slow.
PATIENCE_S = 30.0


class DaemonGone(GpuschedError):
    """The daemon ended before it answered."""


class DaemonSilent(GpuschedError):
    """The daemon lives and has not answered in time."""


class Client:
    """A connection to the daemon of one search."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox = Inbox(to_client, ANSWER_FRAME_BYTES)

    @classmethod
    def connect(cls, path: Path, timeout_s: float | None = None) -> Client | None:
        """Connect to the socket at ``path``; None if nobody answers there. ``timeout_s``: not ``PATIENCE_S``.

        Raises InputError where the daemon runs on another machine: no socket reaches further than its own.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE_S if timeout_s is None else timeout_s)
        try:
            with socket_address(path) as address:
                connection.connect(address)
        except OSError:
            connection.close()
            if host := holder_elsewhere(path.with_name("lock")):
                raise InputError(
                    f"{path.parent.name}: its daemon runs on {host}; run this command there"
                ) from None
            return None
        return cls(connection)

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Ask and return the answer. Raises what the daemon answers with, DaemonGone if it ends, and DaemonSilent."""
        self.send(verb, **arguments)
        try:
            answer = self.receive()
        except TimeoutError:
            raise DaemonSilent(
                f"the daemon has not answered for {self._connection.gettimeout():g} s: it is suspended, or its disk "
                "very slow. daemon.log in the search's folder may say why; then ask again"
            ) from None
        if answer is None:
            raise DaemonGone(
                "the daemon went away before it answered; 'gpusched status' tells more"
            )
        if isinstance(answer, Refused):
            raise InputError(answer.error, exit_code=answer.exit_code)
        return answer.answer if isinstance(answer, Done) else None

    def send(self, verb: str, **arguments: Any) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(Ask(verb, **arguments)))

    def receive(self) -> Done | Refused | Shown | Lines | None:
        """Return the next frame; None when the daemon is gone. Raises TimeoutError while it is silent."""
        data = b""
        with contextlib.suppress(ConnectionError, BadFrame):
            while True:
                for frame in self._inbox.feed(data):
                    return frame  # type: ignore[no-any-return]
                data = self._connection.recv(1 << 16)
                if not data:
                    break
        return None

    def set_timeout(self, timeout_s: float | None) -> None:
        self._connection.settimeout(timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def view(paths: ExperimentPaths) -> dict[str, Any]:
    """Return the standing of a search as JSON: from its daemon, or from its files when none lives."""
    answer = _from_daemon(paths, "view")
    if answer is not None:
        return answer
    kept = read_json(paths.final_view) or {}
    if "state" in kept:  # else it is damaged, or the daemon could not word it
        # The folder may have been moved or copied since.
        return {**kept, "experiment": paths.root.name, "folder": str(paths.root)}
    from gpusched.daemon.clients import standing
    from gpusched.driver.assemble import from_journal

    return standing(from_journal(paths))


def failure(paths: ExperimentPaths) -> GpuschedError:
    """Return the error that ended the daemon of an interrupted experiment: why, what is kept, where to look."""
    name, word = paths.root.name, as_argument(paths) or f" {paths.root.name}"
    why, code = "the daemon ended without a word; it may have been killed", GpuschedError.exit_code
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(paths.failure.read_bytes())
        why, code = f"the daemon failed: {told['why']}", int(told["exit_code"])
    return GpuschedError(
        f"{name}: {why}\nAll reports and checkpoints are kept: 'gpusched resume{word}' continues; "
        f"{paths.log} has the details",
        exit_code=code or None,
    )


def explanation(paths: ExperimentPaths, trial: int) -> dict[str, Any]:
    """Why a trial is where it is: ``{"data": .., "lines": [..]}``. Raises InputError for an unknown trial."""
    answer = _from_daemon(paths, "explain", trial=trial)
    if answer is not None:
        return answer
    from gpusched.daemon.clients import explain
    from gpusched.driver.assemble import from_journal

    return explain(from_journal(paths), trial)


def _connect(paths: ExperimentPaths) -> Client | None:
    """Connect to the daemon of a search, once that listens; None if none lives.

    A daemon holds the lock before it listens, and for a moment after it has stopped.
    """
    until = time.monotonic() + PATIENCE_S
    while (client := Client.connect(paths.socket)) is None and has_daemon(paths):
        if time.monotonic() > until:
            raise GpuschedError(
                f"{paths.root.name}: its daemon has not answered for {PATIENCE_S:g} s; {paths.log} may say why"
            )
        time.sleep(0.02)
    return client


def _from_daemon(paths: ExperimentPaths, verb: str, **arguments: Any) -> dict[str, Any] | None:
    """Return the daemon's answer; None if no daemon lives, or if the daemon ends while being asked."""
    while has_daemon(paths) and (client := _connect(paths)) is not None:
        with client, contextlib.suppress(DaemonGone):
            answer: dict[str, Any] = client.ask(verb, **arguments)
            return answer
    return None


def ask(paths: ExperimentPaths, verb: str, **arguments: Any) -> Any:
    """Ask the daemon of a search. Raises InputError if none lives."""
    client = _connect(paths)
    if client is None:
        name, word = paths.root.name, as_argument(paths) or f" {paths.root.name}"
        if not paths.final_view.exists():
            raise InputError(f"{name} is not running; 'gpusched resume{word}' continues with it")
        raise InputError(
            f"{name} is over; 'gpusched status{word}' shows how it ended, 'gpusched resume{word} --deadline +20m' "
            "continues with it"
        )
    with client:
        return client.ask(verb, **arguments)

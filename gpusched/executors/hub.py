"""The daemon's one loop: its listening socket, every connection, and every other descriptor that it waits for.

A connection says in its first frame of which kind it is (``protocol``): the daemon registers a taker for
clients, an executor one for each kind that its trials speak as. Rules:

* Nothing blocks, and no connection can starve, fill or break another: each gets one short read a turn, as the loop is
  level-triggered. What cannot be written at once is kept up to a limit; beyond it the connection is closed, so a reader
  that sleeps harms itself alone. So does a sender of a frame that is too long, malformed or of a kind that it may not
  send.
* The socket has mode 0600: only processes of our own user connect.

epoll is used without ``selectors``: reports are the hot path.
"""

from __future__ import annotations

import functools
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.errors import GpuschedError
from gpusched.folder.paths import socket_address
from gpusched.protocol import BadFrame, Decode, Frame, Inbox, encode, from_stranger

_READ_BYTES = 4096
_BACKLOG_BYTES = 8 << 20


class Peer:
    """One connection. Whoever takes it says with ``hear`` what may be sent; ``on_end`` is called once.

    ``fault``: why the connection was closed, if the other side sent a bad frame. ``backlog_bytes``: most that is kept
    while the other side does not read.
    """

    def __init__(self, hub: Hub, line: socket.socket, decode_hello: Decode) -> None:
        self._hub = hub
        self._socket = line
        self.fd = line.fileno()
        self._inbox = Inbox(decode_hello)
        self._out = bytearray()
        self.backlog_bytes = _BACKLOG_BYTES
        self._on_frame: Callable[[Any], None] = functools.partial(hub.introduce, self)
        self.fault = ""
        self.on_end: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self.fd < 0

    def hear(self, decode: Decode, on_frame: Callable[[Any], None]) -> None:
        """Expect, from the next frame on, those that ``decode`` knows, and give them to ``on_frame``."""
        self._inbox.decode, self._on_frame = decode, on_frame

    def send(self, frame: Frame) -> None:
        """Send a frame, or keep it until the other side reads; a side that never does is hung up on."""
        if self.fd < 0:
            return
        data = encode(frame)
        if not self._out:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._hub.watch_writing(self.fd, True)
        self._out += data
        if len(self._out) > self.backlog_bytes:
            self.close()

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


Taker = Callable[[Any, Peer], bool]
"""Takes a connection with its first frame. A refusal (False) closes the connection."""


class Hub:
    """Listens on ``path``. The caller holds the experiment's lock: a socket found there is a dead daemon's.

    Raises ``GpuschedError`` if it cannot listen.
    """

    def __init__(self, path: Path) -> None:
        self._takers: dict[type[Frame], Taker] = {}
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}
        self._others: dict[int, Callable[[], None]] = {}
        self.path = path
        self._listener = _listen(path)
        self.listen(self._listener, self.greet)
        self._bell, self._wake = socket.socketpair()
        self._bell.setblocking(False)
        self._wake.setblocking(False)
        self._rung = False
        self.watch(self._bell.fileno(), self._answer_bell)

    @property
    def wake_descriptor(self) -> int:
        """For ``signal.set_wakeup_fd``: a byte written here ends a ``turn``."""
        return self._wake.fileno()

    def wake(self) -> None:
        """End the current or next ``turn`` at once; may be called from a signal handler or another thread."""
        with suppress(BlockingIOError):
            self._wake.send(b"\0")

    def register(self, hello: type[Frame], take: Taker) -> None:
        """Have connections that begin with this frame taken by ``take``."""
        self._takers[hello] = take

    def turn(self, timeout_s: float) -> bool:
        """Wait for something, at most ``timeout_s``, and deal with what there is. True if somebody rang."""
        self._rung = False
        peers = self._peers
        for descriptor, happened in self._epoll.poll(max(0.0, timeout_s), 256):
            peer = peers.get(descriptor)
            if peer is None:
                other = self._others.get(descriptor)
                if other is not None:
                    other()
                continue
            if happened & select.EPOLLOUT:
                peer.flush()
            if happened & ~select.EPOLLOUT and peer.fd >= 0:
                peer.read()
        return self._rung

    def watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Call ``on_readable`` whenever this descriptor has something."""
        self._others[descriptor] = on_readable
        self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        if self._others.pop(descriptor, None) is not None:
            with suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        for peer in list(self._peers.values()):
            peer.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self._bell.close()
        self._wake.close()
        self._epoll.close()

    def listen(self, listener: socket.socket, greet: Callable[[socket.socket], object]) -> None:
        """Give each connection that comes, non-blocking, to ``greet``."""

        def accept() -> None:
            with suppress(OSError):  # none waits, no descriptor is left for it, or it has gone
                line, _address = listener.accept()
                line.setblocking(False)
                greet(line)

        self.watch(listener.fileno(), accept)

    # ------------------------------------------------------------------ for peers

    def watch_writing(self, descriptor: int, wanted: bool) -> None:
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def forget(self, descriptor: int) -> None:
        del self._peers[descriptor]
        self._epoll.unregister(descriptor)

    def greet(self, line: socket.socket, decode: Decode = from_stranger) -> Peer:
        """Serve a non-blocking connection, which begins with a hello unless ``hear`` is called at once."""
        peer = Peer(self, line, decode)
        self._peers[peer.fd] = peer
        self._epoll.register(peer.fd, select.EPOLLIN)
        return peer

    def introduce(self, peer: Peer, hello: Frame) -> None:
        """Take the first frame of a connection."""
        take = self._takers.get(type(hello))
        if take is None or not take(hello, peer):
            peer.close()

    # ------------------------------------------------------------------ inside

    def _answer_bell(self) -> None:
        self._rung = True
        with suppress(BlockingIOError):
            self._bell.recv(4096)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)
        with socket_address(path) as address:
            path.unlink(missing_ok=True)
            listener.bind(address)
    except OSError as problem:
        listener.close()
        why = f"{path}: cannot listen there: {problem.strerror}"
        raise GpuschedError(f"{why}; --dir names a folder on another disk") from problem
    listener.listen(512)
    listener.setblocking(False)
    return listener

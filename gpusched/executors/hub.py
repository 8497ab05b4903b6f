"""The daemon's one loop: its listening socket, every connection, every other descriptor it waits for; and timers.

A connection says in its first frame of which kind it is (``protocol``): the daemon registers a taker for
clients, an executor one for each kind that its trials speak as. Rules:

* Nothing blocks, and no connection can starve, fill or break another (``peer.py``): each gets one short read a turn, as
  the loop is level-triggered.
* Only processes of our own user are spoken to (``SO_PEERCRED``), on a socket of mode 0600.

epoll is used without ``selectors``: reports are the hot path.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gpusched.errors import GpuschedError
from gpusched.executors.peer import Peer
from gpusched.folder.paths import socket_address
from gpusched.protocol import Frame
from gpusched.protocol.lines import BadFrame, Decode, decoder

_HELLO_PATIENCE_S = 10.0
_MOST_STRANGERS = 256


Taker = Callable[[Any, Peer], bool]
"""Takes a connection with its first frame. A refusal (False) closes the connection."""


class Hub:
    """Listens on ``path``. The caller holds the experiment's lock: a socket found there is a dead daemon's.

    Raises ``GpuschedError`` if it cannot listen.
    """

    def __init__(self, path: Path) -> None:
        self._takers: dict[type[Frame], Taker] = {}
        self._decode_hello: Decode = _refuse
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}
        self._others: dict[int, Callable[[], None]] = {}
        self._strangers: dict[int, float] = {}
        self.path = path
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._listener = _listen(path)
        self.watch(self._listener.fileno(), self._accept)
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
        self._decode_hello = decoder(functools.reduce(operator.or_, self._takers))

    def interrupt(self) -> None:
        """Let the current ``turn`` say that somebody rang: called by a taker whose peer asked for something."""
        self._rung = True

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
        if self._strangers:
            self._drop_silent_strangers()
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
        os.close(self._spare)
        self._epoll.close()

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """Accept a connection, non-blocking; None where none waits, or where no descriptor is left for it."""
        try:
            line, _address = listener.accept()
        except BlockingIOError:
            return None
        except OSError:
            self._turn_one_away(listener)
            return None
        line.setblocking(False)
        return line

    def adopt(self, line: socket.socket) -> Peer:
        """Serve a non-blocking connection that this process has made, without a hello; ``hear`` is to be called."""
        peer = Peer(self, line, _refuse)
        peer.be_client()
        self._peers[peer.fd] = peer
        self._epoll.register(peer.fd, select.EPOLLIN)
        return peer

    # ------------------------------------------------------------------ for peers

    def watch_writing(self, descriptor: int, wanted: bool) -> None:
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def forget(self, descriptor: int) -> None:
        del self._peers[descriptor]
        self._strangers.pop(descriptor, None)
        self._epoll.unregister(descriptor)

    def greet(self, line: socket.socket, decode: Decode | None = None) -> None:
        """Wait for the hello of a connection, any that is registered or those that ``decode`` knows.

        Where too many say nothing, the one that has been silent for longest makes room: a crowd keeps nobody out.
        """
        if len(self._strangers) >= _MOST_STRANGERS:
            self._peers[next(iter(self._strangers))].close()
        peer = Peer(self, line, decode or self._decode_hello)
        self._peers[peer.fd] = peer
        self._strangers[peer.fd] = time.monotonic() + _HELLO_PATIENCE_S
        self._epoll.register(peer.fd, select.EPOLLIN)

    def introduce(self, peer: Peer, hello: Frame) -> None:
        """Take the first frame of a connection."""
        self._strangers.pop(peer.fd, None)
        if not self._takers[type(hello)](hello, peer):
            peer.close()

    # ------------------------------------------------------------------ inside

    def _accept(self) -> None:
        for _ in range(64):
            line = self.accept(self._listener)
            if line is None:
                return
            if _user_of(line) == os.getuid():
                self.greet(line)
            else:
                line.close()

    def _turn_one_away(self, listener: socket.socket) -> None:
        """Close a connection for which no descriptor is left: the loop would spin on one that waits."""
        os.close(self._spare)
        with suppress(OSError):
            listener.accept()[0].close()
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _drop_silent_strangers(self) -> None:
        now = time.monotonic()
        for descriptor in [fd for fd, until in self._strangers.items() if until < now]:
            self._peers[descriptor].close()

    def _answer_bell(self) -> None:
        self._rung = True
        with suppress(BlockingIOError):
            self._bell.recv(4096)


class Timers:
    """Actions due at a time of the clock ``now``; those due at the same time run in the order they were asked for.

    An action is cancelled by finding nothing to do.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now() + delay_s, next(self._count), action))

    def run_due(self) -> None:
        """Run what is due; an action asked for meanwhile runs in a later round, even with no delay."""
        now = self.now()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action()


def _refuse(_line: bytes) -> NoReturn:
    raise BadFrame("a connection before any kind of hello was registered")


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)
        with socket_address(path) as address:
            path.unlink(missing_ok=True)
            listener.bind(address)
    except OSError as problem:
        listener.close()
        raise GpuschedError(f"{path}: cannot listen there: {problem.strerror}") from problem
    listener.listen(512)
    listener.setblocking(False)
    return listener


def _user_of(line: socket.socket) -> int:
    """Return the user on the other side, from the kernel."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, user, _group = struct.unpack("3i", credentials)
    return int(user)

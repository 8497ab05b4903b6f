"""The hub: who is let in, what a connection may do to others (nothing), and what it costs."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpusched.errors import GpuschedError
from gpusched.executors.hub import Hub, Peer
from gpusched.protocol import (
    FRAME_BYTES,
    Ask,
    Frame,
    Greeting,
    RankHello,
    Remark,
    Saved,
    ShimHello,
    Shown,
    encode,
    from_client,
    from_rank,
    from_shim,
    to_client,
)

HEARD = {RankHello: from_rank, ShimHello: from_shim, Ask: from_client}


class Board:
    """Takes everybody it is told to; notes every frame."""

    def __init__(self) -> None:
        self.takes = {RankHello, ShimHello, Ask}
        self.peers: list[Peer] = []
        self.heard: list[Any] = []

    def take(self, hello: Frame, peer: Peer) -> bool:
        kind = type(hello)
        peer.hear(HEARD[kind], self.heard.append)
        self.peers.append(peer)
        return kind in self.takes


class Place:
    def __init__(self, folder: Path) -> None:
        self.board = Board()
        self.path = folder / "daemon.sock"
        self.hub = Hub(self.path)
        for kind in self.board.takes:
            self.hub.register(kind, self.board.take)
        self.lines: list[socket.socket] = []

    def connect(self, hello: Frame | bytes = b"") -> socket.socket:
        """Connect by way of the folder: a path may be longer than an address."""
        line = socket.socket(socket.AF_UNIX)
        self.lines.append(line)
        folder = os.open(self.path.parent, os.O_RDONLY)
        line.connect(f"/proc/self/fd/{folder}/{self.path.name}")
        os.close(folder)
        line.settimeout(60)
        line.sendall(hello if isinstance(hello, bytes) else encode(hello))
        return line

    def turns(self, count: int = 5) -> None:
        for _ in range(count):
            self.hub.turn(0.0)

    def is_closed(self, line: socket.socket) -> bool:
        """Whether the hub has closed this connection, or does so in its next turns; what it sent is dropped."""
        self.turns()
        line.setblocking(False)
        try:
            while line.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for line in place.lines:
        line.close()
    place.hub.close()


CLIENT = Ask("view")
RANK = RankHello(1, 1)
SHIM = ShimHello(1, 1, 1, 1)


def saved(step: int) -> Saved:
    return Saved(step, 0.5, 10)


def test_the_socket_is_ours_alone_and_goes_with_the_hub(tmp_path: Path) -> None:
    place = Place(tmp_path)
    mode = place.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert mode & 0o777 == 0o600
    place.hub.close()
    assert not place.path.exists()


def test_a_dead_daemons_socket_is_replaced_at_a_path_longer_than_an_address(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / ("longer" * 30)
    folder.mkdir(parents=True)
    (folder / "daemon.sock").touch()
    place = Place(folder)
    line = place.connect(CLIENT)
    place.turns()
    assert len(place.board.peers) == 1
    line.close()
    place.hub.close()


def test_a_folder_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(GpuschedError, match="cannot listen there"):
        Hub(tmp_path / "absent" / "daemon.sock")


@pytest.mark.parametrize(
    "hello",
    [
        *(b"{}\n", b'{"kind":"stranger"}\n', b'{"kind":["rank"]}\n', b'{"kind":"rank"}\n'),
        *map(encode, (saved(1), Greeting(1))),
    ],
)
def test_a_first_frame_that_is_no_hello_ends_the_connection(place: Place, hello: bytes) -> None:
    assert place.is_closed(place.connect(hello))
    assert place.board.peers == []


def test_a_hello_that_is_refused_ends_the_connection(place: Place) -> None:
    place.board.takes = {ShimHello}
    assert place.is_closed(place.connect(RANK))
    assert not place.is_closed(place.connect(SHIM))


@pytest.mark.parametrize(
    "bad",
    [
        *(b"nonsense\n", b"[1]\n", b"12\n", b"\xff\xfe\n", b"\n", b"[" * 5000 + b"\n", b"\0\n"),
        b'{"kind":"remark","x":' + b"[" * 15_000 + b"\n",
        b'{"kind":"remark","x":"\\ud800",' + b'"x":{' * 2000 + b"\n",
        b'{"kind":"saved","step":1,"save_s":"\\ud800","size_bytes":1}\n',
        b'{"kind":"saved","step":1,"save_s":NaN,"size_bytes":1,"x":"\\ud800"}\n',
        *(b'{"kind":"rank","trial":1,"incarnation":1}\n', encode(Ask("view"))),
        *(b'{"kind":"unheard of"}\n', b'{"kind":7}\n', b'{"kind":"remark","kind":"saved"}\n'),
    ],
)
def test_a_malformed_frame_ends_its_connection_alone(place: Place, bad: bytes) -> None:
    good, line = place.connect(RANK), place.connect(RANK)
    place.turns()
    line.sendall(bad)
    assert place.is_closed(line)
    good.sendall(encode(saved(7)))
    place.turns()
    assert place.board.heard == [saved(7)]
    assert place.board.peers[1].fault, "the reason is kept for the log"


def test_a_frame_up_to_the_limit_and_beyond(place: Place) -> None:
    fits = encode(Remark("odd")).replace(b"{", b'{"x":"' + b"y" * (FRAME_BYTES - 100) + b'",')
    for data, closed in ((fits, False), (b"x" * (2 * FRAME_BYTES), True)):
        line = place.connect(RANK)
        line.setblocking(False)
        while data:
            try:
                data = data[line.send(data) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                break
            place.turns(1)
        place.turns(500)
        assert place.is_closed(line) is closed
    assert len(place.board.heard) == 1


def test_a_reader_that_sleeps_is_dropped_and_blocks_nobody(place: Place) -> None:
    sleeper, reader = place.connect(CLIENT), place.connect(CLIENT)
    place.turns()
    slow, quick = place.board.peers
    gone: list[str] = []
    slow.on_end = lambda: gone.append("slow")
    view = Shown({"x": "x" * 100_000})
    received = 0
    reader.setblocking(False)
    for _ in range(200):
        slow.send(view)
        quick.send(view)
        place.turns(2)
        while True:
            try:
                received += len(reader.recv(1 << 20))
            except BlockingIOError:
                break
    assert slow.closed
    assert gone == ["slow"]
    assert not quick.closed
    assert received >= 199 * 100_000
    assert sleeper.fileno() > 0


def test_what_was_kept_back_arrives_whole_and_in_order(place: Place) -> None:
    line = place.connect(CLIENT)
    place.turns()
    (peer,) = place.board.peers
    for number in range(30):
        peer.send(Shown({"number": number, "weight": "x" * 50_000}))
    data = b""
    while data.count(b"\n") < 30:
        place.turns(1)
        data += line.recv(1 << 20)
    assert [to_client(text).view["number"] for text in data.splitlines()] == list(range(30))


def test_a_flood_does_not_starve_the_others(place: Place) -> None:
    flood, other = place.connect(RANK), place.connect(RANK)
    place.turns()
    flood.setblocking(False)
    frame = encode(Remark("odd"))
    with suppress(BlockingIOError):  # the kernel takes as much of it as it likes
        for _ in range(3):
            flood.send(frame * 5000)
    other.sendall(encode(saved(1)))
    place.turns(1)
    assert saved(1) in place.board.heard
    assert len(place.board.heard) < 1000


def test_wake_ends_a_turn(place: Place) -> None:
    place.hub.wake()
    assert place.hub.turn(1000.0)
    assert not place.hub.turn(0.0)
    os.write(place.hub.wake_descriptor, b"\x0f")  # as set_wakeup_fd does
    assert place.hub.turn(1000.0)


def test_a_peer_ends_once(place: Place) -> None:
    line = place.connect(RANK)
    place.turns()
    (peer,) = place.board.peers
    ends: list[int] = []
    peer.on_end = lambda: ends.append(1)
    line.close()
    place.turns()
    peer.close()
    assert ends == [1]
    assert peer.closed
    peer.send(Greeting(1))  # to nobody


def test_drain_takes_all_that_has_come(place: Place) -> None:
    line = place.connect(RANK)
    place.turns()
    line.sendall(b"".join(encode(saved(number)) for number in range(2000)))
    place.board.peers[0].drain()
    assert [frame.step for frame in place.board.heard] == list(range(2000))

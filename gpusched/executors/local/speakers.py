"""Who may speak for whom: the hub's connections, handed to the incarnation that they belong to.

A frame of an incarnation that is not the current one is refused; one that was launched before it was due
(``preparing.py``) is known by its number as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from gpusched.executors.hub import Hub
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.intake import Intake
from gpusched.executors.peer import Peer
from gpusched.processes.identity import Identity
from gpusched.protocol import (
    Exited,
    Greeting,
    RankHello,
    ShimHello,
    from_rank,
    from_shim,
)


class Owner(Protocol):
    """What this part needs of the executor."""

    def known(self, trial: int, incarnation: int) -> Incarnation | None: ...

    def joined(self, it: Incarnation) -> None: ...

    def watch(self, it: Incarnation, shim: Identity) -> bool: ...

    def shim_said(self, it: Incarnation, frame: Exited) -> None: ...


class Speakers:
    """Takes connections of rank 0 and of shims. ``epoch``: of this daemon; ``say`` takes a remark for the log."""

    def __init__(
        self, owner: Owner, intake: Intake, epoch: int, hub: Hub, say: Callable[[str], None]
    ) -> None:
        self._owner = owner
        self._intake = intake
        self._greeting = Greeting(epoch)
        self._say = say
        #: Incarnations of which it was said that they sent what is no frame.
        self._complained: set[tuple[int, int]] = set()
        hub.register(RankHello, self._take_rank)
        hub.register(ShimHello, self._take_shim)

    def _take_rank(self, hello: RankHello, peer: Peer) -> bool:
        it = self._owner.known(hello.trial, hello.incarnation)
        if it is None:
            return False
        if it.rank_peer is not None:
            it.rank_peer.close()
        it.rank_peer = peer
        it.awaiting = None
        peer.send(self._greeting)
        peer.hear(from_rank, partial(self._intake.said, it, peer))
        peer.on_end = partial(self._rank_left, it, peer)
        self._owner.joined(it)
        return True

    def _take_shim(self, hello: ShimHello, peer: Peer) -> bool:
        it = self._owner.known(hello.trial, hello.incarnation)
        shim = Identity(hello.pid, hello.start_time)
        if it is None or (it.shim is not None and it.shim != shim):
            return False
        it.shim_peer = peer
        peer.send(self._greeting)
        peer.hear(from_shim, partial(self._owner.shim_said, it))
        if it.pidfd is None:
            self._owner.watch(it, shim)
        it.ask_to_stop()
        it.tell_that_it_counts()
        return True

    def _rank_left(self, it: Incarnation, peer: Peer) -> None:
        if it.rank_peer is peer:
            it.rank_peer = None
            it.awaiting = None
        if peer.fault and (it.trial, it.number) not in self._complained:
            self._complained.add((it.trial, it.number))
            self._say(f"trial {it.trial}: its line is closed, it sent no frame: {peer.fault}")

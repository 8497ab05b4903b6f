"""Connections of ranks and shims, handed to the incarnation that they may speak for.

A frame of an incarnation that is not the current one is refused; a prestart (``prestart.py``) may speak as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.intake import Intake
from gpusched.executors.local.shared import Shared
from gpusched.executors.local.stopping import Stopping
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


class Speakers:
    """Takes connections of rank 0 and of shims.

    ``epoch``: of this daemon; ``up`` is called when all ranks of an incarnation have joined, ``exited`` with the last
    frame of its shim.
    """

    def __init__(
        self,
        shared: Shared,
        intake: Intake,
        stopping: Stopping,
        epoch: int,
        *,
        up: Callable[[Incarnation], None],
        exited: Callable[[Incarnation, Exited], None],
    ) -> None:
        self._roster = shared.roster
        self._say = shared.say
        self._intake = intake
        self._stopping = stopping
        self._greeting = Greeting(epoch)
        self._up = up
        self._exited = exited
        #: Incarnations whose bad frames have been reported.
        self._complained: set[tuple[int, int]] = set()
        shared.hub.register(RankHello, self._take_rank)
        shared.hub.register(ShimHello, self._take_shim)

    def _take_rank(self, hello: RankHello, peer: Peer) -> bool:
        incarnation = self._roster.named(hello.trial, hello.incarnation)
        if incarnation is None:
            return False
        if incarnation.rank_peer is not None:
            incarnation.rank_peer.close()
        incarnation.rank_peer = peer
        incarnation.awaiting = None
        peer.send(self._greeting)
        peer.hear(from_rank, partial(self._intake.said, incarnation, peer))
        peer.on_end = partial(self._rank_left, incarnation, peer)
        if incarnation.is_due and not incarnation.is_up:
            self._up(incarnation)
        return True

    def _take_shim(self, hello: ShimHello, peer: Peer) -> bool:
        incarnation = self._roster.named(hello.trial, hello.incarnation)
        shim = Identity(hello.pid, hello.start_time)
        if incarnation is None or (incarnation.shim is not None and incarnation.shim != shim):
            return False
        incarnation.shim_peer = peer
        peer.send(self._greeting)
        peer.hear(from_shim, partial(self._exited, incarnation))
        if incarnation.pidfd is None:
            self._stopping.watch(incarnation, shim)
        incarnation.tell_shim()
        return True

    def _rank_left(self, incarnation: Incarnation, peer: Peer) -> None:
        if incarnation.rank_peer is peer:
            incarnation.rank_peer = None
            incarnation.awaiting = None
        if peer.fault and (incarnation.trial, incarnation.number) not in self._complained:
            self._complained.add((incarnation.trial, incarnation.number))
            self._say(
                f"trial {incarnation.trial}: its line is closed, it sent no frame: {peer.fault}"
            )

"""Who may speak for whom: the hub's connections, handed to the incarnation that they belong to.

A frame of an incarnation that is not the current one is refused; one that was launched before it was due
(``preparing.py``) is known by its number as well.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from gpusched.executors.hub import Hub
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.intake import Intake
from gpusched.executors.peer import Frame, Peer
from gpusched.processes.identity import Identity


class Owner(Protocol):
    """What this part needs of the executor."""

    def known(self, trial: int, incarnation: int) -> Incarnation | None: ...

    def joined(self, it: Incarnation) -> None: ...

    def watch(self, it: Incarnation, shim: Identity) -> bool: ...

    def shim_said(self, it: Incarnation, frame: Frame) -> None: ...


class Speakers:
    """Takes connections of rank 0 and of shims. ``epoch``: of this daemon, which each of them is greeted with."""

    def __init__(self, owner: Owner, intake: Intake, epoch: int, hub: Hub) -> None:
        self._owner = owner
        self._intake = intake
        self._greeting: dict[str, Any] = {"epoch": epoch}
        hub.register("rank", self._take_rank)
        hub.register("shim", self._take_shim)

    def spoken_for(self, frame: Frame) -> Incarnation | None:
        """Whom this frame names, if it is one that may be named."""
        trial, incarnation = frame.get("trial"), frame.get("incarnation")
        if type(trial) is int and type(incarnation) is int:
            return self._owner.known(trial, incarnation)
        return None

    def _take_rank(self, hello: Frame, peer: Peer) -> bool:
        it = self.spoken_for(hello)
        if it is None:
            return False
        if it.rank_peer is not None:
            it.rank_peer.close()
        it.rank_peer = peer
        it.awaiting = None
        peer.send(self._greeting)
        peer.on_frame = partial(self._intake.said, it, peer)
        peer.on_end = partial(_rank_left, it, peer)
        self._owner.joined(it)
        return True

    def _take_shim(self, hello: Frame, peer: Peer) -> bool:
        it = self.spoken_for(hello)
        match hello:
            case {"pid": int(pid), "start_time": int(began)} if it is not None:
                shim = Identity(pid, began)
            case _:
                return False
        if it.shim is not None and it.shim != shim:
            return False
        it.shim_peer = peer
        peer.send(self._greeting)
        peer.on_frame = partial(self._owner.shim_said, it)
        if it.pidfd is None:
            self._owner.watch(it, shim)
        it.ask_to_stop()
        it.tell_that_it_counts()
        return True


def _rank_left(it: Incarnation, peer: Peer) -> None:
    if it.rank_peer is peer:
        it.rank_peer = None
        it.awaiting = None

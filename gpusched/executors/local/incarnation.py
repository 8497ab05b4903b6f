"""One incarnation as the daemon sees it: what was asked of it, who speaks for it, which reports are in.

``Roster`` has those of which processes may be left; ``Shared`` is what every part of the executor works with.

Not to be confused with ``core.trial.TrialRecord`` (the search's) or the shim (which owns the processes).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpusched.core.events import Event, Outcome, TrialExited, TrialUp
from gpusched.executors.base import Setting, Timers
from gpusched.executors.hub import Hub, Peer
from gpusched.executors.local.settings import Limits
from gpusched.folder.paths import TrialPaths
from gpusched.processes.claim import Claim, make_claim, read_claim
from gpusched.processes.identity import Identity, open_pidfd
from gpusched.processes.outcome import read_exit
from gpusched.protocol import Answer, Exit, Go, LaunchSpec, StopTree


@dataclass(slots=True, eq=False)
class Incarnation:
    """One launch of a trial."""

    trial: int
    number: int
    devices: tuple[str, ...]
    paths: TrialPaths
    spec: LaunchSpec | None = None
    #: Number of the last report that is in, and step of the newest checkpoint that is known.
    last_seq: int = 0
    saved_step: int = 0
    #: Report that rank 0 waits for an answer to, and what the answer has to say.
    awaiting: int | None = None
    yields: Go | None = None
    saves: bool = False
    #: Stop that was asked for: its grace, and whether the ranks first write down where they hang.
    stop_grace_s: float | None = None
    stacks: bool = False
    #: Reason why the trial fails, whatever its processes say.
    fault: str | None = None
    is_up: bool = False
    rank_peer: Peer | None = None
    shim_peer: Peer | None = None
    shim: Identity | None = None
    pidfd: int | None = None
    #: Pid of the server that forked the shim; None: another daemon's.
    launched_by: int | None = None

    def exited(self, outcome: Outcome, error: str | None = None, **more: Any) -> TrialExited:
        """Return the event of its end, to be told with the time at which all that it said before is in."""
        return TrialExited(
            at=0.0,
            trial=self.trial,
            incarnation=self.number,
            outcome=outcome,
            error=error,
            **more,
        )

    # ------------------------------------------------------------------ reports

    def reply_to(self, seq: int) -> Answer:
        """Word the answer to a report: what was asked for, or to go on."""
        if self.yields is not None:
            return Answer(seq, "yield" if self.saves else self.yields)
        saves, self.saves = self.saves, False
        return Answer(seq, "save" if saves else "continue")

    def answer(self, seq: int) -> None:
        """Answer a report if rank 0 waits for it."""
        if self.awaiting == seq and self.rank_peer is not None:
            self.awaiting = None
            self.rank_peer.send(self.reply_to(seq))

    # ------------------------------------------------------------------ its shim

    def claim(self) -> Claim | None:
        return read_claim(self.paths.shim(self.number))

    def claim_or_forbid(self) -> bool:
        """Whether a shim has claimed this incarnation; if none has, none ever will."""
        try:
            return not make_claim(self.paths.shim(self.number), None)
        except FileNotFoundError:
            return False  # not even its folder is there; no process is left that would make one

    def exit_record(self) -> Exit | None:
        """Read what the shim wrote when nothing was left."""
        return read_exit(self.paths, self.number)

    def watch_shim(self, hub: Hub, shim: Identity, on_gone: Any) -> bool:
        """Have ``on_gone()`` called when the shim ends. False if it has ended."""
        self.shim = shim
        self.unwatch_shim(hub)
        self.pidfd = open_pidfd(shim)
        if self.pidfd is None:
            return False
        hub.watch(self.pidfd, on_gone)
        return True

    def unwatch_shim(self, hub: Hub) -> None:
        if self.pidfd is not None:
            hub.unwatch(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None

    def tell_shim(self) -> None:
        """Pass on a stop that was asked for; a shim without a line hears on connecting."""
        if self.shim_peer is not None and self.stop_grace_s is not None:
            self.shim_peer.send(StopTree(self.stop_grace_s, self.stacks))

    def hang_up(self, hub: Hub) -> None:
        """Stop watching the shim and close both lines, without a call of ``on_end``."""
        self.unwatch_shim(hub)
        for peer in (self.rank_peer, self.shim_peer):
            if peer is not None:
                peer.on_end = None
                peer.close()
        self.rank_peer = self.shim_peer = None


class Roster:
    """Every incarnation of which processes may be left: of each trial the current one."""

    def __init__(self) -> None:
        self.current: dict[int, Incarnation] = {}

    def find(self, trial: int, number: int) -> Incarnation | None:
        """Return the current incarnation if it has this number."""
        incarnation = self.current.get(trial)
        return incarnation if incarnation is not None and incarnation.number == number else None

    def has(self, incarnation: Incarnation) -> bool:
        """Whether this incarnation has not ended."""
        return self.current.get(incarnation.trial) is incarnation


@dataclass(frozen=True, slots=True)
class Shared:
    """All that every part of the executor works with.

    ``emit`` takes events; ``end`` is called with each incarnation of which nothing is left, and how it ended.
    """

    setting: Setting
    limits: Limits
    timers: Timers
    emit: Callable[[Event], None]
    end: Callable[[Incarnation, TrialExited], None]
    roster: Roster = field(default_factory=Roster)

    def tell_up(self, incarnation: Incarnation) -> None:
        """Tell that all ranks of an incarnation have joined."""
        incarnation.is_up = True
        now, trial = self.timers.now(), incarnation.trial
        self.emit(TrialUp(at=now, trial=trial, incarnation=incarnation.number))

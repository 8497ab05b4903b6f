"""One incarnation as the daemon sees it: what was asked of it, its rank 0 and its shim on the line, its reports.

Reports are taken in order and each once, whichever way they came: as a frame, or, where the line to the daemon was
broken, from the trial's own file when a later number shows that one is missing. A number that was in before is
answered, and no event is made of it. Types and bounds have been checked where the frame was decoded; the metric that
the recipe searches by is looked for here.

Not to be confused with ``core.trial.TrialRecord`` (the search's) or the shim (which owns the processes).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpusched.core.events import CheckpointSaved, Event, Outcome, Reported, TrialExited, TrialUp
from gpusched.executors.base import Setting
from gpusched.executors.hub import Hub, Peer
from gpusched.executors.live import Timers
from gpusched.folder.paths import TrialPaths
from gpusched.folder.reports import reports_after
from gpusched.processes.claim import Claim, make_claim, read_claim
from gpusched.processes.identity import Identity, open_pidfd
from gpusched.processes.outcome import read_exit
from gpusched.protocol import (
    Answer,
    Exit,
    Go,
    Greeting,
    LaunchSpec,
    Remark,
    Report,
    Saved,
    StopTree,
    from_rank,
)

TETHER_S = 120.0
"""Time for which a trial goes on without a daemon; ``GPUSCHED_TETHER_S`` overrides it (for tests, mostly)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times that the executor allows. ``birth_s``: from the fork of a shim to its ranks, whose imports do not count."""

    birth_s: float = 60.0
    release_s: float = 60.0
    kill_margin_s: float = 15.0
    unkillable_after_s: float = 60.0
    #: How long a trial goes on without a daemon before it is asked to save and leave.
    tether_s: float = field(
        default_factory=lambda: float(os.environ.get("GPUSCHED_TETHER_S", TETHER_S))
    )


@dataclass(slots=True, eq=False)
class Incarnation:
    """One launch of a trial."""

    shared: Shared
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
    holds: bool = False
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

    # ------------------------------------------------------------------ rank 0

    def take_rank(self, peer: Peer) -> None:
        """Serve a connection of rank 0; it takes the place of an earlier one."""
        if self.rank_peer is not None:
            self.rank_peer.close()
        self.rank_peer = peer
        self.awaiting = None
        peer.send(Greeting(self.shared.setting.epoch))
        peer.hear(from_rank, self._said)
        peer.on_end = partial(self._rank_left, peer)
        if not self.is_up:
            self.is_up = True
            now = self.shared.timers.now()
            waited_s = self.shared.waited_s.pop(self.trial, 0.0)
            self.shared.emit(
                TrialUp(at=now, trial=self.trial, incarnation=self.number, waited_s=waited_s)
            )

    def _rank_left(self, peer: Peer) -> None:
        if self.rank_peer is peer:
            self.rank_peer = None
            self.awaiting = None
        if peer.fault:
            said = f"trial {self.trial}: its line is closed, it sent no frame: {peer.fault}"
            self.shared.say_once((self.trial, self.number), said)

    def _said(self, frame: Report | Saved | Remark) -> None:
        """Take a frame of rank 0."""
        match frame:
            case Report():
                self._take_report(frame)
            case Saved():
                self._saved(frame.step, frame.save_s, frame.size_bytes)
            case Remark():
                # Each launch of a trial may send it, and each trial of one script.
                self.shared.say_once(frame.text, f"trial {self.trial}: {frame.text}")

    def _take_report(self, report: Report) -> None:
        peer = self.rank_peer
        assert peer is not None
        if report.seq <= self.last_seq:
            peer.send(self._reply_to(report.seq))
            return
        if report.seq > self.last_seq + 1:
            self._catch_up(before=report.seq)
        if self._report(report):
            self.awaiting = report.seq
        else:
            peer.send(Answer(report.seq, "leave"))

    def _report(self, report: Report) -> bool:
        """False where the report cannot stand; the trial fails then."""
        shared = self.shared
        if self.fault is not None:
            return False
        wanted = shared.setting.recipe.metric
        try:
            metric = report.metric(wanted)
        except KeyError:
            has = f" (it has {', '.join(map(repr, report.metrics))})" if report.metrics else ""
            self.fault = f"it sent a report without a number for {wanted!r}, by which the recipe searches{has}"
            shared.kill(self, 0.0)
            return False
        self.last_seq = report.seq
        report.incarnation = self.number
        now = shared.timers.now()
        shared.emit(Reported(at=now, trial=self.trial, report=report, metric=metric))
        return True

    def _reply_to(self, seq: int) -> Answer:
        """Word the answer to a report: what was asked for, or to continue."""
        if self.yields is not None:
            return Answer(seq, "yield" if self.saves else self.yields)
        saves, self.saves = self.saves, False
        holds, self.holds = self.holds, False
        return Answer(seq, "save" if saves else "hold" if holds else "continue")

    def answer(self, seq: int) -> None:
        """Answer a report if rank 0 waits for it."""
        if self.awaiting == seq and self.rank_peer is not None:
            self.awaiting = None
            self.rank_peer.send(self._reply_to(seq))

    # ------------------------------------------------------------------ what did not come in

    def catch_up(self, known_step: int | None = None) -> None:
        """Tell of reports that did not come in, and of a checkpoint that was committed and not told.

        Its writer died, or no daemon listened. ``known_step``: the checkpoint that the event of its end will tell of.
        """
        self._catch_up()
        step = self.paths.newest_checkpoint()
        if step > max(self.saved_step, known_step or 0):
            self._saved(step, 0.0, 0)

    def _catch_up(self, before: int | None = None) -> None:
        """Take the reports that did not come in from the trial's own file."""
        for report in reports_after(self.paths.reports, self.last_seq):
            if before is not None and report.seq >= before:
                continue
            if report.incarnation < self.number:
                continue  # of a node that was given up, and wrote when it woke up
            if report.seq > self.last_seq + 1:
                self._say_lost(report.seq)
            if not self._report(report):
                return

    def _say_lost(self, before: int) -> None:
        lost = range(self.last_seq + 1, before)
        which = f"report {lost[0]}" if len(lost) == 1 else f"reports {lost[0]} to {lost[-1]}"
        self.shared.setting.say(
            f"trial {self.trial}: {which} did not come in and cannot be read in {self.paths.reports}"
        )

    def _saved(self, step: int, save_s: float, size_bytes: int) -> None:
        self.saved_step = step
        self.shared.emit(
            CheckpointSaved(
                at=self.shared.timers.now(),
                trial=self.trial,
                incarnation=self.number,
                step=step,
                save_s=save_s,
                size_bytes=size_bytes,
            )
        )

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


@dataclass(slots=True, kw_only=True)
class Shared:
    """All that every part of the executor works with.

    ``emit`` takes events; ``end`` is called with each incarnation of which nothing is left, and how it ended; ``kill``
    begins to end one, with a grace in seconds.
    """

    setting: Setting
    limits: Limits
    timers: Timers
    emit: Callable[[Event], None]
    end: Callable[[Incarnation, TrialExited], None]
    kill: Callable[[Incarnation, float], None]
    #: The incarnation of each trial of which processes may be left.
    current: dict[int, Incarnation] = field(default_factory=dict)
    #: By trial, how long its launch waited for the warm server.
    waited_s: dict[int, float] = field(default_factory=dict)
    _told: set[object] = field(default_factory=set)

    def find(self, trial: int, number: int) -> Incarnation | None:
        """Return the incarnation of this trial if it is the current one."""
        incarnation = self.current.get(trial)
        return incarnation if incarnation is not None and incarnation.number == number else None

    def has(self, incarnation: Incarnation) -> bool:
        """Whether this incarnation has not ended."""
        return self.current.get(incarnation.trial) is incarnation

    def say_once(self, about: object, said: str) -> None:
        """Tell people of something once in the life of this daemon."""
        if about not in self._told:
            self._told.add(about)
            self.setting.say(said)

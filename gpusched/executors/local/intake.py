"""Words of ranks and shims: whose a connection is, and frames of rank 0 as events.

A frame of an incarnation that is not the current one is refused.
Reports are taken in order and each once, whichever way they came.

A report comes as a frame, or, where the line to the daemon was broken, is found in the trial's own file when a later
number shows that one is missing. A number that was in before is answered, and no event is made of it. Types and
bounds have been checked where the frame was decoded; the metric that the recipe searches by is looked for here.
"""

from __future__ import annotations

from functools import partial

from gpusched.core.events import CheckpointSaved, Reported
from gpusched.executors.hub import Peer
from gpusched.executors.local.endings import how_it_ended
from gpusched.executors.local.incarnation import Incarnation, Shared
from gpusched.executors.local.stopping import Stopping
from gpusched.folder.reports import reports_after
from gpusched.processes.identity import Identity
from gpusched.protocol import (
    Answer,
    Exited,
    Greeting,
    Handed,
    RankHello,
    Remark,
    Report,
    Saved,
    ShimHello,
    Waits,
)
from gpusched.protocol.lines import from_rank, from_shim


class Intake:
    """Intake of what rank 0 and the shims say, which becomes events."""

    def __init__(self, shared: Shared, stopping: Stopping) -> None:
        setting = shared.setting
        self._shared = shared
        self._roster, self._say, self._emit = shared.roster, setting.say, shared.emit
        self._metric = setting.recipe.metric
        self._now = shared.timers.now
        self._stopping = stopping
        self._greeting = Greeting(setting.epoch)
        #: Remarks, and incarnations with a bad frame, that have been told of.
        self._told: set[object] = set()
        setting.hub.register(RankHello, self._take_rank)
        setting.hub.register(ShimHello, self._take_shim)

    # ------------------------------------------------------------------ connections

    def _take_rank(self, hello: RankHello, peer: Peer) -> bool:
        incarnation = self._roster.find(hello.trial, hello.incarnation)
        if incarnation is None:
            return False
        if incarnation.rank_peer is not None:
            incarnation.rank_peer.close()
        incarnation.rank_peer = peer
        incarnation.awaiting = None
        peer.send(self._greeting)
        peer.hear(from_rank, partial(self._said, incarnation, peer))
        peer.on_end = partial(self._rank_left, incarnation, peer)
        if not incarnation.is_up:
            self._shared.tell_up(incarnation)
        return True

    def _take_shim(self, hello: ShimHello, peer: Peer) -> bool:
        incarnation = self._roster.find(hello.trial, hello.incarnation)
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

    def _exited(self, incarnation: Incarnation, frame: Exited) -> None:
        if self._roster.has(incarnation):
            self._shared.end(incarnation, how_it_ended(incarnation, frame.record))

    def _rank_left(self, incarnation: Incarnation, peer: Peer) -> None:
        if incarnation.rank_peer is peer:
            incarnation.rank_peer = None
            incarnation.awaiting = None
        if peer.fault:
            said = f"trial {incarnation.trial}: its line is closed, it sent no frame: {peer.fault}"
            self._say_once((incarnation.trial, incarnation.number), said)

    def _say_once(self, about: object, said: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._say(said)

    # ------------------------------------------------------------------ frames of rank 0

    def _said(
        self, incarnation: Incarnation, peer: Peer, frame: Report | Saved | Remark | Handed | Waits
    ) -> None:
        """Take a frame of rank 0."""
        match frame:
            case Report():
                self._take_report(incarnation, peer, frame)
            case Saved():
                self._saved(incarnation, frame.step, frame.save_s, frame.size_bytes)
            case Remark():
                # Each launch of a trial may send it, and each trial of one script.
                self._say_once(frame.text, f"trial {incarnation.trial}: {frame.text}")
            case _:
                pass

    def catch_up(self, incarnation: Incarnation, before: int | None = None) -> None:
        """Take from the trial's own file the reports that did not come in; the node of rank 0 does so."""
        if incarnation.paths.part:
            return
        for report in reports_after(incarnation.paths.reports, incarnation.last_seq):
            if before is not None and report.seq >= before:
                continue
            if report.incarnation < incarnation.number:
                continue  # of a node that was given up, and wrote when it woke up
            if report.seq > incarnation.last_seq + 1:
                self._say_lost(incarnation, report.seq)
            if not self._report(incarnation, report):
                return

    def _say_lost(self, incarnation: Incarnation, before: int) -> None:
        lost = range(incarnation.last_seq + 1, before)
        which = f"report {lost[0]}" if len(lost) == 1 else f"reports {lost[0]} to {lost[-1]}"
        self._say(
            f"trial {incarnation.trial}: {which} did not come in and cannot be read in {incarnation.paths.reports}"
        )

    def catch_up_saved(self, incarnation: Incarnation, known: int | None = None) -> None:
        """Tell of a checkpoint that was committed and not told: its writer died, or no daemon listened."""
        step = incarnation.paths.newest_checkpoint()
        if step > max(incarnation.saved_step, known or 0):
            self._saved(incarnation, step, 0.0, 0)

    def _saved(self, incarnation: Incarnation, step: int, save_s: float, size_bytes: int) -> None:
        incarnation.saved_step = step
        self._emit(
            CheckpointSaved(
                at=self._now(),
                trial=incarnation.trial,
                incarnation=incarnation.number,
                step=step,
                save_s=save_s,
                size_bytes=size_bytes,
            )
        )

    def _take_report(self, incarnation: Incarnation, peer: Peer, report: Report) -> None:
        if report.seq <= incarnation.last_seq:
            peer.send(incarnation.reply_to(report.seq))
            return
        if report.seq > incarnation.last_seq + 1:
            self.catch_up(incarnation, before=report.seq)
        if self._report(incarnation, report):
            incarnation.awaiting = report.seq
        else:
            peer.send(Answer(report.seq, "leave"))

    def _report(self, incarnation: Incarnation, report: Report) -> bool:
        """False where the report cannot stand; the trial fails then."""
        if incarnation.fault is not None:
            return False
        wanted = self._metric
        try:
            metric = report.metric(wanted)
        except KeyError:
            has = f" (it has {', '.join(map(repr, report.metrics))})" if report.metrics else ""
            problem = (
                f"it sent a report without a number for {wanted!r}, by which the recipe searches"
            )
            incarnation.fault = problem + has
            self._stopping.kill(incarnation, 0.0)
            return False
        incarnation.last_seq = report.seq
        report.incarnation = incarnation.number
        self._emit(Reported(at=self._now(), trial=incarnation.trial, report=report, metric=metric))
        return True

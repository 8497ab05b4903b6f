"""Frames of rank 0 as events: reports in order and each once, whichever way they came.

A report comes as a frame, or, where the line to the daemon was broken, is found in the trial's own file when a later
number shows that one is missing. A number that was in before is answered, and no event is made of it. Types and
bounds have been checked where the frame was decoded; the metric that the recipe searches by is looked for here.
"""

from __future__ import annotations

from collections.abc import Callable

from gpusched.core.events import CheckpointSaved, Event, Reported
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.peer import Peer
from gpusched.protocol import Answer, Handed, Report, Saved, Waits


class Intake:
    """``fail`` is called with an incarnation that sent what cannot stand, and why."""

    def __init__(
        self,
        metric: str,
        now: Callable[[], float],
        emit: Callable[[Event], None],
        fail: Callable[[Incarnation, str], None],
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        #: Called with what rank 0 handed over, and when it has reported after that.
        self.handed: Callable[[Incarnation, Handed], None] = lambda _it, _handed: None
        self.taken_back: Callable[[Incarnation], None] = lambda _it: None
        #: Called when all ranks of one wait for what to go on from.
        self.waiting: Callable[[Incarnation], None] = lambda _it: None
        self._metric = metric
        self._now = now
        self._emit = emit
        self._fail = fail
        self._say = say

    def said(self, it: Incarnation, peer: Peer, frame: Report | Saved | Handed | Waits) -> None:
        """Take a frame of rank 0."""
        match frame:
            case Report():
                self._take_report(it, peer, frame)
            case Saved():
                self._saved(it, frame.step, frame.save_s, frame.size_bytes)
            case Handed():
                self.handed(it, frame)
            case Waits():
                self.waiting(it)

    def catch_up(self, it: Incarnation, before: int | None = None) -> None:
        """Take from the trial's own file the reports that did not come in."""
        for report in it.missed_reports(before):
            if report.seq > it.last_seq + 1:
                self._say_lost(it, report.seq)
            if not self._report(it, report):
                return

    def _say_lost(self, it: Incarnation, before: int) -> None:
        lost = range(it.last_seq + 1, before)
        which = f"report {lost[0]}" if len(lost) == 1 else f"reports {lost[0]} to {lost[-1]}"
        self._say(
            f"trial {it.trial}: {which} did not come in and cannot be read in {it.paths.reports}"
        )

    def catch_up_saved(self, it: Incarnation, known: int | None = None) -> None:
        """Tell of a checkpoint that was committed and not told: its writer died, or no daemon listened."""
        step = it.newest_checkpoint()
        if step > max(it.saved_step, known or 0):
            self._saved(it, step, 0.0, 0)

    def _saved(self, it: Incarnation, step: int, save_s: float, size_bytes: int) -> None:
        it.saved_step = step
        self._emit(
            CheckpointSaved(
                at=self._now(),
                trial=it.trial,
                incarnation=it.number,
                step=step,
                save_s=save_s,
                size_bytes=size_bytes,
            )
        )

    def _take_report(self, it: Incarnation, peer: Peer, report: Report) -> None:
        if report.seq <= it.last_seq:
            peer.send(it.reply_to(report.seq))
            return
        if report.seq > it.last_seq + 1:
            self.catch_up(it, before=report.seq)
        if self._report(it, report):
            it.awaiting = report.seq
        else:
            peer.send(Answer(report.seq, "leave"))

    def _report(self, it: Incarnation, report: Report) -> bool:
        """False where the report cannot stand; the trial fails for it."""
        if it.fault is not None:
            return False
        try:
            metric = report.metric(self._metric)
        except KeyError:
            has = f" (it has {', '.join(map(repr, report.metrics))})" if report.metrics else ""
            wanted = f"{self._metric!r}, by which the recipe searches"
            self._fail(it, f"it sent a report without a number for {wanted}{has}")
            return False
        it.last_seq = report.seq
        report.incarnation = it.number
        if it.handed is not None:
            self.taken_back(it)
        event = Reported(at=self._now(), trial=it.trial, report=report, metric=metric)
        event.stays = event.can_save = it.stays
        self._emit(event)
        return True

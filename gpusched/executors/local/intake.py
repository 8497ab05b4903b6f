"""Frames of rank 0 as events: reports in order and each once, whichever way they came.

A report comes as a frame, or, where the line to the daemon was broken, is found in the trial's own file when a later
number shows that one is missing. A number that was in before is answered, and no event is made of it. Types and
bounds have been checked where the frame was decoded; the metric that the recipe searches by is looked for here.
"""

from __future__ import annotations

from collections.abc import Callable

from gpusched.core.events import CheckpointSaved, Event, Reported
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.prestart import Prestarts
from gpusched.executors.local.shared import Shared
from gpusched.executors.peer import Peer
from gpusched.protocol import Answer, Handed, Report, Saved, Waits


class Intake:
    """``emit`` takes the events; ``fail`` is called with an incarnation that sent what cannot stand, and why."""

    def __init__(
        self,
        shared: Shared,
        prestarts: Prestarts,
        emit: Callable[[Event], None],
        fail: Callable[[Incarnation, str], None],
    ) -> None:
        self._metric = shared.settings.metric
        self._now = shared.timers.now
        self._say = shared.say
        self._prestarts = prestarts
        self._emit = emit
        self._fail = fail

    def said(
        self, incarnation: Incarnation, peer: Peer, frame: Report | Saved | Handed | Waits
    ) -> None:
        """Take a frame of rank 0."""
        match frame:
            case Report():
                self._take_report(incarnation, peer, frame)
            case Saved():
                self._saved(incarnation, frame.step, frame.save_s, frame.size_bytes)
            case Handed():
                self._prestarts.handed(incarnation, frame)
            case Waits():
                self._prestarts.ready(incarnation)

    def catch_up(self, incarnation: Incarnation, before: int | None = None) -> None:
        """Take from the trial's own file the reports that did not come in."""
        for report in incarnation.missed_reports(before):
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
        step = incarnation.newest_checkpoint()
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
        """False where the report cannot stand; the trial fails for incarnation."""
        if incarnation.fault is not None:
            return False
        try:
            metric = report.metric(self._metric)
        except KeyError:
            has = f" (it has {', '.join(map(repr, report.metrics))})" if report.metrics else ""
            wanted = f"{self._metric!r}, by which the recipe searches"
            self._fail(incarnation, f"it sent a report without a number for {wanted}{has}")
            return False
        incarnation.last_seq = report.seq
        report.incarnation = incarnation.number
        self._prestarts.reported(incarnation)
        event = Reported(at=self._now(), trial=incarnation.trial, report=report, metric=metric)
        event.stays = event.can_save = incarnation.trains_on
        self._emit(event)
        return True

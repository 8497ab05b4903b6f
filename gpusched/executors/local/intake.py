"""What rank 0 says, as events: reports in order and each once, whichever way they came.

A report comes as a frame, or, where the line to the daemon was broken, is found in the trial's own file when a later
number shows that one is missing. A number that was in before is answered and told nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from gpusched.core.events import CheckpointSaved, Event
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.reporting import LARGEST, BadReport, make_report
from gpusched.executors.peer import Frame, Peer


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
        self.handed: Callable[[Incarnation, Frame], None] = lambda _it, _frame: None
        self.taken_back: Callable[[Incarnation], None] = lambda _it: None
        #: Called when all ranks of one wait for what to go on from.
        self.waiting: Callable[[Incarnation], None] = lambda _it: None
        self._metric = metric
        self._now = now
        self._emit = emit
        self._fail = fail
        self._say = say

    def said(self, it: Incarnation, peer: Peer, frame: Frame) -> None:
        """A frame of rank 0."""
        if "report" in frame:
            self._take_report(it, peer, frame)
        elif "saved" in frame:
            self._take_saved(it, frame)
        elif type(frame.get("handed")) is int:
            self.handed(it, frame)
        elif frame.get("waits") is True:
            self.waiting(it)

    def catch_up(self, it: Incarnation, before: int | None = None) -> None:
        """Take from the trial's own file what did not come in."""
        for line in it.missed_reports(before):
            if line.seq > it.last_seq + 1:
                self._say_lost(it, line.seq)
            if not self._report(it, (line.seq, line.step, line.step_time_s, line.metrics)):
                return

    def _say_lost(self, it: Incarnation, before: int) -> None:
        lost = range(it.last_seq + 1, before)
        which = f"report {lost[0]}" if len(lost) == 1 else f"reports {lost[0]} to {lost[-1]}"
        self._say(
            f"trial {it.trial}: {which} did not come in and cannot be read in {it.paths.reports}"
        )

    def catch_up_saved(self, it: Incarnation, known: int | None = None) -> None:
        """Tell of a checkpoint that was committed and not told: its writer died, or nobody listened."""
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

    def _take_report(self, it: Incarnation, peer: Peer, frame: Frame) -> None:
        seq = frame["report"]
        if type(seq) is not int:
            peer.close()
        elif seq <= it.last_seq:
            peer.send_bytes(it.reply_to(seq))
        else:
            if seq > it.last_seq + 1:
                self.catch_up(it, before=seq)
            line = (seq, frame.get("step"), frame.get("step_time_s"), frame.get("metrics"))
            if self._report(it, line):
                it.awaiting = seq
            else:
                peer.send_bytes(b'{"seq": %d, "go": "leave"}\n' % seq)

    def _report(self, it: Incarnation, line: tuple[object, object, object, object]) -> bool:
        """False where the report cannot stand; the trial fails for it."""
        if it.fault is not None:
            return False
        try:
            report = make_report(self._now(), it.trial, it.number, line, self._metric)
        except BadReport as problem:
            self._fail(it, f"it sent {problem}")
            return False
        it.last_seq = report.seq
        report.stays = report.can_save = it.stays
        if it.handed is not None:
            self.taken_back(it)
        self._emit(report)
        return True

    def _take_saved(self, it: Incarnation, frame: Frame) -> None:
        step, save_s, size = frame["saved"], frame.get("save_s"), frame.get("bytes")
        # NaN and numbers beyond 2**53 have no place in the journal; comparing them raises nothing.
        if (
            type(step) is int
            and isinstance(save_s, int | float)
            and type(size) is int
            and all(0 <= number < LARGEST for number in (step, size, save_s))
        ):
            self._saved(it, step, float(save_s), size)

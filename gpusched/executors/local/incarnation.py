"""One incarnation as the daemon sees it: rank 0 and the shim on the line, its reports, and how it is stopped.

Reports are taken in order and each once, whichever way they came: as a frame, or, where the line to the daemon was
broken, from the trial's own file when a later number shows that one is missing. A number that was in before is
answered, and no event is made of it.

From the order to stop to an empty process tree:

0. A launch that no shim has claimed yet is forbidden, and has ended.
1. The shim is told to stop: SIGTERM to its ranks, after the grace SIGKILL to the tree.
2. ``KILL_MARGIN_S`` later the shim itself is killed, unless it has said that its tree is empty.
3. Whatever the reason, when a shim has died the server that forked it kills what is left and says so; then, or if no
   server has, the daemon hunts for what is left, shared memory among it (``Hunt``).
4. Processes that are left ``UNKILLABLE_AFTER_S`` later, even SIGKILL does not end (a driver that hangs): the
   incarnation ends on paper without them, and its devices are released as ever: only when they are proven empty.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpusched.core.commands import Kill, Save, Yield
from gpusched.core.events import CheckpointSaved, Outcome, Reported, TrialExited, TrialUp
from gpusched.executors.base import FOREVER
from gpusched.executors.hub import Peer
from gpusched.folder import files
from gpusched.folder.paths import TrialPaths
from gpusched.folder.reports import reports_after
from gpusched.processes import outcome
from gpusched.processes.claim import Claim, Hunt, make_claim, read_claim
from gpusched.processes.identity import Identity, boot_id, open_pidfd, send_signal
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

if TYPE_CHECKING:
    from gpusched.executors.local.executor import Shared

KILL_MARGIN_S = 15.0
UNKILLABLE_AFTER_S = 60.0
_SERVER_PATIENCE_S = 5.0
_HUNT_EVERY_S = 0.05


@dataclass(slots=True, eq=False)
class Incarnation:
    """One launch of a trial."""

    shared: Shared
    trial: int
    number: int
    devices: tuple[str, ...]
    paths: TrialPaths
    spec: LaunchSpec | None = None
    #: Time at which its launch began here.
    asked_at: float = FOREVER
    #: Number of the last report that is in, and step of the newest checkpoint that is known.
    last_seq: int = 0
    saved_step: int = 0
    #: Report that rank 0 waits for an answer to, and what the answer has to say.
    awaiting: int | None = None
    go: Go = "continue"
    #: Stop that was asked for.
    stop: StopTree | None = None
    is_up: bool = False
    rank_peer: Peer | None = None
    shim_peer: Peer | None = None
    shim: Identity | None = None
    pidfd: int | None = None
    #: Wait status of a shim that is known to have died.
    shim_status: int | None = None

    def ending(self, record: Exit | None = None) -> TrialExited:
        """Judge its end from the shim's word, else ``exit.json``, else a last word; else killed if asked for."""
        paths, number = self.paths, self.number
        record = record or outcome.read_exit(paths, number)
        if record is None and (word := outcome.last_word(paths, number)) is not None:
            record = outcome.verdict(word=word, asked_to_stop=False, codes={}, error=None)
        if record is not None:
            error = str(record.error or record.stuck)
            return self.exited(record.outcome, error or None, saved_step=record.saved_step)
        if self.stop is not None:
            return self.exited("killed")
        died, claim = "its shim died", self.claim()
        if claim is not None and claim.boot_id != boot_id():
            died = "the machine was restarted"
        elif self.shim_status is not None:
            code = os.waitstatus_to_exitcode(self.shim_status)
            died += f" ({outcome.signal_name(-code) if code < 0 else f'exit code {code}'})"
        last = files.last_line(paths.shim_log(number))
        return self.exited("lost", f"{died}: {last}" if last else died)

    def exited(self, how: Outcome, error: str | None = None, **more: Any) -> TrialExited:
        """Return the event of its end, to be told with the time at which all that it said before is in."""
        return TrialExited(
            at=0.0, trial=self.trial, incarnation=self.number, outcome=how, error=error, **more
        )

    def obey(self, command: Yield | Save | Kill) -> None:
        """Have the next answer to rank 0 say so, or begin to end it."""
        match command:
            case Yield(save=save):
                self.go = "yield" if save or self.go in ("save", "yield") else "leave"
            case Save(hold=True):
                self.go = "hold" if self.go == "continue" else self.go
            case Save():
                self.go = "yield" if self.go in ("yield", "leave") else "save"
            case Kill(grace_s=grace_s):
                self.kill(grace_s, stacks=command.stacks)

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
            waited_s = max(0.0, self.shared.server.ready_at - self.asked_at)
            up = TrialUp(at=now, trial=self.trial, incarnation=self.number, waited_s=waited_s)
            self.shared.emit(up)

    def _rank_left(self, peer: Peer) -> None:
        if self.rank_peer is peer:
            self.rank_peer = self.awaiting = None
        if peer.fault:
            said = f"trial {self.trial}: its connection was closed after a message that cannot be read: {peer.fault}"
            self.shared.say_once((self.trial, self.number), said)

    def _said(self, frame: Report | Saved | Remark) -> None:
        """Take a frame of rank 0."""
        match frame:
            case Report():
                self._take_report(frame)
            case Saved():
                self._saved(frame.step, frame.save_s, frame.size_bytes)
            case Remark():
                if frame.full:
                    self.shared.setting.refused()
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
        self._report(report)
        self.awaiting = report.seq

    def _report(self, report: Report) -> None:
        shared, self.last_seq, report.incarnation = self.shared, report.seq, self.number
        now, metric = shared.timers.now(), report.metric(shared.setting.recipe.metric)
        shared.emit(Reported(at=now, trial=self.trial, report=report, metric=metric))

    def _reply_to(self, seq: int) -> Answer:
        """Word the answer to a report: what was asked for, or to continue. Until it leaves a trial is told so."""
        go = self.go
        if go in ("hold", "save"):
            self.go = "continue"
        return Answer(seq, go)

    def answer(self, seq: int) -> None:
        """Answer a report if rank 0 waits for it."""
        if self.awaiting == seq and self.rank_peer is not None:
            self.awaiting = None
            self.rank_peer.send(self._reply_to(seq))

    def catch_up(self, known_step: int | None = None) -> None:
        """Tell of reports that did not come in, and of checkpoints that were committed and not told.

        Their writer died, or no daemon listened. ``known_step``: the checkpoint that the event of its end will tell of.
        """
        self._catch_up()
        for step in self.paths.checkpoint_steps():
            if step > self.saved_step and step != known_step:
                self._saved(step, 0.0, 0)

    def _catch_up(self, before: float = float("inf")) -> None:
        """Take the reports that did not come in from the trial's own file; a node that was given up may write there."""
        for report in reports_after(self.paths.reports, self.last_seq):
            if report.seq < before and report.incarnation >= self.number:
                self._report(report)

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

    def watch_shim(self, shim: Identity) -> bool:
        """Notice when the shim ends. False if it has ended."""
        self.shim = shim
        self.unwatch_shim()
        self.pidfd = open_pidfd(shim)
        if self.pidfd is None:
            return False
        self.shared.setting.hub.watch(self.pidfd, self.shim_gone)
        return True

    def unwatch_shim(self) -> None:
        if self.pidfd is not None:
            self.shared.setting.hub.unwatch(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None

    def adopt(self) -> bool:
        """Watch over the shim that has the claim, if that lives: another daemon, or another server, has started it."""
        claim = self.claim()
        shim = claim.shim if claim is not None and claim.is_alive else None
        return shim is not None and self.watch_shim(shim)

    def hang_up(self) -> None:
        """Stop watching the shim and close both lines, without a call of ``on_end``."""
        self.unwatch_shim()
        for peer in (self.rank_peer, self.shim_peer):
            if peer is not None:
                peer.on_end = None
                peer.close()
        self.rank_peer = self.shim_peer = None

    # ------------------------------------------------------------------ to its end

    @property
    def is_current(self) -> bool:
        """Whether it has not ended."""
        return self.shared.current.get(self.trial) is self

    def kill(self, grace_s: float, *, stacks: bool = False) -> None:
        """Begin to end it, or shorten its grace. ``stacks``: it hangs, and must say where."""
        if self.stop is not None and grace_s >= self.stop.grace_s:
            return
        self.stop = StopTree(grace_s, stacks)
        if self._forbid():
            self.shared.end(self, self.exited("killed"))
            return
        self.tell_shim()
        after = self.shared.timers.after
        after(grace_s + KILL_MARGIN_S, self.kill_shim)
        after(grace_s + KILL_MARGIN_S + UNKILLABLE_AFTER_S, self._give_up)

    def tell_shim(self) -> None:
        """Pass on a stop that was asked for; a shim without a line hears on connecting."""
        if self.shim_peer is not None and self.stop is not None:
            self.shim_peer.send(self.stop)

    def _forbid(self) -> bool:
        """Forbid a launch that the server has not begun, as imports may take minutes. False if a shim claimed it."""
        with suppress(OSError):  # a full disk
            return self.shim is None and not self.claim_or_forbid()
        return False

    def kill_shim(self) -> None:
        """End a shim that does not do as it was told; the processes it owned are then hunted."""
        if self.is_current and self.shim is not None:
            send_signal(self.shim, signal.SIGKILL)

    def shim_gone(self) -> None:
        """Deal with the end of the shim: the server that forked it kills what is left, else the daemon does."""
        self.unwatch_shim()
        # Where a launch was asked for twice, the shim that has gone found the claim made by another.
        if not self.adopt():
            self.shared.timers.after(_SERVER_PATIENCE_S, self.hunt)

    def hunt(self, hunt: Hunt | None = None) -> None:
        """Kill what it left behind, round by round, then end it."""
        if not self.is_current:
            return
        hunt = hunt or Hunt(self.shared.setting.paths, self.trial, self.number)
        if not hunt.round():
            self.shared.end(self, None)
        elif hunt.since_s > UNKILLABLE_AFTER_S:
            self._give_up()
        else:
            self.shared.timers.after(_HUNT_EVERY_S, partial(self.hunt, hunt))

    def _give_up(self) -> None:
        if self.is_current:
            ended: Outcome = "lost" if self.stop is None else "killed"
            left = Hunt(self.shared.setting.paths, self.trial, self.number).describe()
            self.shared.end(self, self.exited(ended, f"{left} cannot be killed"))

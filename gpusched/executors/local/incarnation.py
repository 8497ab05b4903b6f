"""One incarnation as the daemon sees it: what was asked of it, who speaks for it, which reports are in.

Not to be confused with ``core.trial.Trial`` (what the search knows of a trial) or the shim (which owns the processes).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from gpusched.executors.hub import Hub
from gpusched.executors.peer import Peer
from gpusched.folder.files import read_json
from gpusched.folder.paths import TrialPaths
from gpusched.folder.reports import reports_after
from gpusched.processes.claim import Claim, make_claim, read_claim
from gpusched.processes.identity import Identity, open_pidfd, send_signal
from gpusched.processes.outcome import sane_exit
from gpusched.protocol import Answer, Counts, Go, Handed, LaunchSpec, Report, Stop


class Incarnation:
    """``launched_by``: the pid of the server that forked its shim, None if that was another daemon's."""

    __slots__ = (
        "awaiting",
        "counts",
        "devices",
        "fault",
        "handed",
        "is_ready",
        "is_up",
        "last_seq",
        "launched_by",
        "number",
        "paths",
        "pidfd",
        "rank_peer",
        "restored_step",
        "saved_step",
        "saves",
        "sent_at",
        "shim",
        "shim_peer",
        "spec",
        "stacks",
        "stays",
        "stop_grace_s",
        "trial",
        "waits",
        "yields",
    )

    def __init__(
        self, trial: int, number: int, devices: tuple[str, ...], paths: TrialPaths
    ) -> None:
        self.trial = trial
        self.number = number
        self.devices = devices
        self.paths = paths
        self.spec: LaunchSpec | None = None
        self.last_seq = 0
        self.saved_step = 0
        self.awaiting: int | None = None
        self.yields: Go | None = None
        self.saves = False
        self.stop_grace_s: float | None = None
        self.stacks = False
        self.fault: str | None = None
        self.is_up = False
        self.rank_peer: Peer | None = None
        self.shim_peer: Peer | None = None
        self.shim: Identity | None = None
        self.pidfd: int | None = None
        self.launched_by: int | None = None
        #: Of a resize (``preparing.py``). It is to yield, and is answered "go on" for now.
        self.stays = False
        #: What it told of a checkpoint in memory.
        self.handed: Handed | None = None
        #: It was launched before it was due: it does not count yet; its ranks are set up; what they went on from.
        self.waits = False
        self.is_ready = False
        self.restored_step: int | None = None
        self.sent_at = 0.0
        #: Its shim is to be told that it counts now.
        self.counts = False

    # ------------------------------------------------------------------ reports

    def missed_reports(self, before: int | None = None) -> Iterator[Report]:
        """Reports in the trial's own file that have not come in."""
        for report in reports_after(self.paths.reports, self.last_seq):
            if before is None or report.seq < before:
                yield report

    def newest_checkpoint(self) -> int:
        """The step of the newest that is committed on disk; 0 if there is none."""
        try:
            names = [entry.name for entry in self.paths.checkpoints.iterdir()]
        except OSError:
            return 0
        steps = (name.removeprefix("step-") for name in names if name.startswith("step-"))
        return max((int(step) for step in steps if step.isdigit()), default=0)

    def reply_to(self, seq: int) -> Answer:
        """The answer to a report: what was asked for it, or to go on."""
        if self.yields is not None and not self.stays:
            return Answer(seq, "yield" if self.saves else self.yields)
        saves, self.saves = self.saves, False
        return Answer(seq, "save" if saves else "continue", soon=self.stays)

    def answer(self, seq: int) -> None:
        """Answer if rank 0 waits for it."""
        if self.awaiting == seq and self.rank_peer is not None:
            self.awaiting = None
            self.rank_peer.send(self.reply_to(seq))

    # ------------------------------------------------------------------ its shim

    def claim(self) -> Claim | None:
        return read_claim(self.paths.shim(self.number))

    def claim_or_forbid(self) -> bool:
        """Whether a shim has claimed it; if none has, none ever will."""
        try:
            return not make_claim(self.paths.shim(self.number), None)
        except FileNotFoundError:
            return False  # not even its folder is there; nobody is left who would make one

    def exit_record(self) -> dict[str, Any] | None:
        """What its shim wrote when nothing was left."""
        return sane_exit(read_json(self.paths.exit(self.number)))

    def watch_shim(self, hub: Hub, shim: Identity, on_gone: Any) -> bool:
        """Have ``on_gone()`` called when it ends. False if it has ended."""
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

    def ask_to_stop(self) -> None:
        """Pass a stop that was asked for on to the shim, if it is on the line; else it hears when it connects."""
        if self.stop_grace_s is not None and self.shim_peer is not None:
            self.shim_peer.send(Stop(self.stop_grace_s, self.stacks))

    def tell_that_it_counts(self) -> None:
        """It was launched before it was due, and now it is; a shim that is not on the line hears when it connects."""
        if self.counts and self.shim_peer is not None:
            self.shim_peer.send(Counts())

    def signal_shim(self, number: int) -> bool:
        return self.shim is not None and send_signal(self.shim, number)

    def hang_up(self) -> None:
        """Close its lines; nobody is called about it."""
        for peer in (self.rank_peer, self.shim_peer):
            if peer is not None:
                peer.on_end = None
                peer.close()
        self.rank_peer = self.shim_peer = None

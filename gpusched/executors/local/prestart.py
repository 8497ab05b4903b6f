"""Prestart: the next incarnation of a trial that leaves for a resize, set up before it is due.

    expected ──launched──▶ SETTING_UP ──its ranks wait──▶ READY ──the one before hands over──▶ TRAINING
                                └──────────────── its Launch is executed: it is due ────────────────┴──▶ current

Nothing of a prestart is in the journal: it is a guess about a launch, and may always be wrong. Rules:

* The incarnation before trains on until the ranks of the prestart wait (``trains_on``), where a step is not longer
  than that takes; else it leaves at once, and the prestart is set up while it saves.
* A prestart dies with its daemon, with its line to it, or when it is not expected any more. Until nothing of it is
  left, no launch gets its devices or its number (``Roster.dropped``). Its folder of logs is then put aside.
* A state restored from memory counts only if the incarnation before has committed that step to disk.
* The file ``waits`` of a trial names its prestart. A daemon that finds the file ends what it names.
* On GPUs the new ranks wait at their first touch of CUDA until they are due (``worker/handover.py``), so that their
  GPUs are proven empty as for any launch. Where a release is late with a prestart beside it, the prestart is dropped.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from gpusched.core.commands import Launch
from gpusched.core.events import TrialExited
from gpusched.devices.base import Devices
from gpusched.errors import GpuschedError
from gpusched.executors.local.incarnation import Incarnation, Shared
from gpusched.executors.local.launching import Launcher
from gpusched.executors.local.server import Server
from gpusched.executors.local.stopping import Stopping
from gpusched.folder.files import read_json
from gpusched.protocol import Handed, Restore

MOST_AT_ONCE = 4
FAILURES_MAX = 2
"""After so many prestarts that failed no other is tried: the script is not made for them."""
SETUP_GUESS_S = 0.5
SETUP_LIMIT_S = 60.0
RELEASE_PATIENCE_S = 10.0
MEMORY_FACTOR = 2.0


class Stage(Enum):
    """Progress of the ranks of a prestart."""

    SETTING_UP = auto()
    AT_GPU = auto()
    """The ranks wait for their GPUs, before they have come to what they go on from."""
    READY = auto()
    """The ranks wait for what to go on from."""
    TRAINING = auto()
    """The ranks went on from what the incarnation before handed over in memory."""


@dataclass(slots=True, eq=False)
class Prestart:
    """Progress of one prestart."""

    sent_at: float = 0.0
    stage: Stage = Stage.SETTING_UP
    #: The launch has been executed: the prestart is the current incarnation.
    is_due: bool = False
    #: The checkpoint in memory that the incarnation before told of.
    handed: Handed | None = None
    restored_step: int | None = None


class Prestarts:
    """Every prestart of the executor, from the launch that is expected to the launch, or to its end without one."""

    def __init__(
        self,
        shared: Shared,
        server: Server,
        launcher: Launcher,
        stopping: Stopping,
        devices: Devices,
    ) -> None:
        self._shared = shared
        self._setting = shared.setting
        self._roster = shared.roster
        self._timers = shared.timers
        self._server = server
        self._launcher = launcher
        self._stopping = stopping
        self._devices = devices
        self._setup_s = SETUP_GUESS_S
        #: Prestarts that failed by themselves.
        self.failures = 0

    # ------------------------------------------------------------------ commands

    def expect(self, trial: int, launch: Launch | None, interval_s: float) -> None:
        """See ``Executor.expect``."""
        known = self._roster.prestarted.get(trial)
        if known is not None:
            if launch is None or not _fits(known, launch):
                self._drop(known)
            return
        before = self._roster.current.get(trial)
        if launch is None or before is None or not self._may_begin(before, launch):
            return
        incarnation = Incarnation(trial, launch.incarnation, launch.devices, before.paths)
        incarnation.prestart = Prestart(self._timers.now())
        try:
            self._begin(incarnation, launch)
        except (OSError, GpuschedError) as problem:
            self._roster.prestarted.pop(trial, None)
            self._failed(incarnation, str(problem))
            self._put_aside(incarnation)
            return
        before.trains_on = interval_s <= self._setup_s
        self._timers.after(SETUP_LIMIT_S, partial(self._overdue, incarnation))

    def _may_begin(self, before: Incarnation, launch: Launch) -> bool:
        return (
            self._setting.recipe.prestart
            and not launch.devices[0].startswith("MIG-")  # torch asks CUDA itself about those
            and self._server.ready
            and self.failures < FAILURES_MAX
            and len(self._roster.prestarted) < MOST_AT_ONCE
            and before.is_up
            and before.stop_grace_s is None
            and before.number < launch.incarnation
            and not any(dropped.trial == before.trial for dropped in self._roster.dropped)
            and _has_memory(before, len(launch.devices))
        )

    def _begin(self, incarnation: Incarnation, launch: Launch) -> None:
        spec = self._launcher.prepare(incarnation, launch)
        spec.env["GPUSCHED_WAITS"] = "1"
        mark = {"incarnation": incarnation.number, "devices": list(incarnation.devices)}
        mark["node"] = self._setting.node
        incarnation.paths.waits.write_text(json.dumps(mark))
        self._roster.prestarted[incarnation.trial] = incarnation
        self._server.launch(spec)
        if self._server.withdraw(spec):  # the server has just died
            raise OSError("the warm server has gone")

    def take(self, command: Launch) -> bool:
        """Make a prestart the current incarnation, if one fits this launch; False: none does."""
        incarnation = self._roster.prestarted.get(command.trial)
        if incarnation is None:
            return False
        known_seq = self._setting.seq_of(command.trial)
        if not (_fits(incarnation, command) and known_seq <= incarnation.last_seq):
            self._drop(incarnation)
            return False
        prestart = incarnation.prestart
        assert prestart is not None
        del self._roster.prestarted[command.trial]
        self._roster.current[command.trial] = incarnation
        prestart.is_due = True
        self._devices.take(command.devices)
        incarnation.tell_shim()
        if prestart.stage is not Stage.SETTING_UP:
            self._shared.tell_up(incarnation)
        if prestart.stage is Stage.READY:
            self._restore(incarnation, Restore())
        return True

    def _restore(self, incarnation: Incarnation, what: Restore) -> None:
        """Tell ranks that wait what to go on from; by default the newest checkpoint on disk."""
        if incarnation.rank_peer is not None:
            incarnation.rank_peer.send(what)

    # ------------------------------------------------------------------ what ranks say

    def ready(self, incarnation: Incarnation) -> None:
        """All ranks wait: of a prestart for the incarnation before, of one that is due for a word to begin."""
        prestart = incarnation.prestart
        if prestart is None or prestart.is_due:
            self._restore(incarnation, Restore())
            return
        self._note_set_up(incarnation.trial, prestart, Stage.READY)
        self._hand_over(incarnation, prestart)

    def handed(self, before: Incarnation, handed: Handed) -> None:
        """The incarnation before has a checkpoint in memory, and is about to commit it."""
        incarnation = self._roster.prestarted.get(before.trial)
        if incarnation is not None and incarnation.prestart is not None:
            incarnation.prestart.handed = handed
            self._hand_over(incarnation, incarnation.prestart)

    def at_gpu(self, incarnation: Incarnation) -> None:
        """Let the incarnation before leave: the ranks of this prestart can do no more without their GPUs."""
        prestart = incarnation.prestart
        if prestart is not None and not prestart.is_due and prestart.stage is Stage.SETTING_UP:
            self._note_set_up(incarnation.trial, prestart, Stage.AT_GPU)

    def _note_set_up(self, trial: int, prestart: Prestart, stage: Stage) -> None:
        prestart.stage = stage
        self._let_leave(trial)
        self._setup_s = 0.5 * (self._setup_s + self._timers.now() - prestart.sent_at)

    def _hand_over(self, incarnation: Incarnation, prestart: Prestart) -> None:
        if prestart.stage is not Stage.READY or prestart.handed is None:
            return
        if incarnation.rank_peer is not None:
            prestart.stage = Stage.TRAINING
            prestart.restored_step = prestart.handed.step
            self._restore(incarnation, Restore(prestart.handed))

    def reported(self, before: Incarnation) -> None:
        """The incarnation before has reported: if it had handed over, it could not save, and trains on."""
        incarnation = self._roster.prestarted.get(before.trial)
        if incarnation is None or incarnation.prestart is None:
            return
        incarnation.prestart.handed = None
        if incarnation.prestart.stage is Stage.TRAINING:
            self._drop(incarnation)

    def left(self, before: Incarnation, saved_step: int | None) -> None:
        """The incarnation before has ended, having committed that step on its way out."""
        if before.prestart is not None:
            before.paths.waits.unlink(missing_ok=True)
        incarnation = self._roster.prestarted.get(before.trial)
        if incarnation is None:
            return
        assert incarnation.prestart is not None
        incarnation.last_seq, incarnation.saved_step = before.last_seq, before.saved_step
        if self._devices.kind == "cuda":
            late = f"their GPUs are not released after {RELEASE_PATIENCE_S:.0f} s"
            self._timers.after(RELEASE_PATIENCE_S, partial(self._give_up, incarnation, late))
        restored = incarnation.prestart.restored_step
        if restored is not None and restored not in (saved_step, before.saved_step):
            self._drop(incarnation)

    # ------------------------------------------------------------------ ends

    def _overdue(self, incarnation: Incarnation) -> None:
        prestart = incarnation.prestart
        if prestart is not None and prestart.stage is Stage.SETTING_UP:
            waited_s = self._timers.now() - prestart.sent_at
            self._give_up(incarnation, f"they are not set up after {waited_s:.0f} s")

    def _give_up(self, incarnation: Incarnation, why: str) -> None:
        """Drop a prestart that is late, or in the way of a release: something of it may be on the GPUs."""
        if self._roster.prestarted.get(incarnation.trial) is incarnation:
            self._failed(incarnation, why)
            self._drop(incarnation)

    def _failed(self, incarnation: Incarnation, why: str, *, by_itself: bool = True) -> None:
        self.failures += by_itself
        last = self.failures >= FAILURES_MAX
        then = "from now on resizes wait for it" if last else "this resize waits for it"
        self._setting.say(
            f"trial {incarnation.trial}: its next ranks cannot be set up beside those that train ({why}); {then}"
        )

    def _forget(self, incarnation: Incarnation) -> None:
        del self._roster.prestarted[incarnation.trial]
        self._let_leave(incarnation.trial)

    def _let_leave(self, trial: int) -> None:
        """Have the incarnation before leave at its next report, if it is to yield."""
        before = self._roster.current.get(trial)
        if before is not None:
            before.trains_on = False

    def _drop(self, incarnation: Incarnation) -> None:
        """End a prestart that will not be needed."""
        self._forget(incarnation)
        self._roster.dropped.append(incarnation)
        self._stopping.kill(incarnation, 0.0)

    def ended(self, incarnation: Incarnation, ending: TrialExited) -> None:
        """Record the end of a prestart that is not due: nothing of it is left."""
        if self._roster.prestarted.get(incarnation.trial) is incarnation:
            first = (ending.error or ending.outcome).splitlines()[0]
            self._failed(incarnation, first, by_itself=ending.outcome != "lost")
            self._forget(incarnation)
        else:
            self._roster.dropped.remove(incarnation)
        incarnation.hang_up(self._setting.hub)
        self._put_aside(incarnation)
        self._launcher.release_held()

    def _put_aside(self, incarnation: Incarnation) -> None:
        """Free the number for the launch that the prestart was to be."""
        logs = incarnation.paths.logs(incarnation.number)
        aside = logs.with_name(f"unused-{incarnation.number}")
        with suppress(OSError):
            if any(logs.glob("shim-*.json")):  # another node has begun its part of the launch
                incarnation.paths.shim(incarnation.number).unlink(missing_ok=True)
                incarnation.paths.exit(incarnation.number).unlink(missing_ok=True)
            else:
                shutil.rmtree(aside, ignore_errors=True)
                logs.rename(aside)
        incarnation.paths.waits.unlink(missing_ok=True)

    def server_gone(self) -> None:
        """Drop every prestart: what the server was asked to fork may never come."""
        for incarnation in list(self._roster.prestarted.values()):
            self._drop(incarnation)
        for incarnation in self._roster.dropped:
            incarnation.launched_by = None
            if incarnation.shim is None:
                self._timers.after(0.0, partial(self._end_unclaimed, incarnation))

    def _end_unclaimed(self, incarnation: Incarnation) -> None:
        if incarnation not in self._roster.dropped:
            return
        if incarnation.claim_or_forbid():
            self._stopping.hunt(incarnation)
        else:
            self.ended(incarnation, incarnation.exited("killed"))

    def find_abandoned(self, live: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """End the prestarts of another daemon; return those of ``live`` (trial, number) that were not due yet."""
        found = set()
        for trial in self._setting.paths.trial_numbers:
            paths = self._setting.paths.trial(trial)
            if not paths.waits.exists():
                continue
            about = read_json(paths.waits) or {}
            if about.get("node", "") != self._setting.node:
                continue  # the node does that
            number, devices = about.get("incarnation"), about.get("devices")
            if type(number) is not int:
                paths.waits.unlink(missing_ok=True)
                continue
            if (trial, number) in live:
                found.add((trial, number))
                continue
            names = tuple(map(str, devices)) if isinstance(devices, list) else ()
            incarnation = Incarnation(trial, number, names, paths)
            incarnation.prestart, incarnation.stop_grace_s = Prestart(), 0.0
            self._roster.dropped.append(incarnation)
            self._end_unclaimed(incarnation)
        return found


def _fits(incarnation: Incarnation, launch: Launch) -> bool:
    return incarnation.number == launch.incarnation and incarnation.devices == launch.devices


def _has_memory(before: Incarnation, ranks: int) -> bool:
    """Whether memory has room for so many more ranks, each as large as those that train."""
    claim = before.claim()
    if claim is None or not claim.ranks:
        return False
    import psutil  # not before the first resize: it takes a while

    sizes = []
    for rank in claim.ranks:
        try:
            sizes.append(psutil.Process(rank.pid).memory_info().rss)
        except psutil.Error:
            sizes.append(0)
    needed_bytes = MEMORY_FACTOR * ranks * sum(sizes) / len(sizes)
    return bool(needed_bytes < psutil.virtual_memory().available)

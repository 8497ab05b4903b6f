"""The next incarnation of a trial that leaves for a resize, launched before it is due.

    expected ──launched──▶ set up, its ranks wait ──the one before hands over──▶ trains, not counted
                                     └──────────────── Launch is executed ──────────────┴──▶ one of ``_live``

Nothing of this is in the journal: it is a guess about a launch, and may always be wrong. Rules:

* The one before trains on until the next one's ranks wait (``stays``), where a step is not longer than that takes;
  else it leaves at once, and the next one is set up while it saves.
* What is prepared dies with its daemon, with its line to it, or when it is not expected any more. Until nothing of it
  is left, no launch gets its devices or its number. Its folder of logs is then put aside.
* What was restored from memory counts only if the one before has committed that step to disk.
* The file ``waits`` of the trial says that there is one. A daemon that finds it ends what it names.
* CPU slots only. On a GPU the new ranks would need memory that the old ones hold, and a reserved GPU that was given
  back would have to be proven clean first.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol

from gpusched.core.decisions import Launch
from gpusched.executors.hub import Hub
from gpusched.executors.local.endings import Ending
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.launching import Launcher
from gpusched.executors.local.server import Server
from gpusched.executors.local.settings import LaunchSettings
from gpusched.executors.local.stopping import Stopping
from gpusched.executors.local.timers import Timers
from gpusched.folder.files import read_json
from gpusched.folder.find import trial_folders
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import last_seq
from gpusched.protocol import Handed, Restore

MOST_AT_ONCE = 4
FAILURES_MAX = 2
"""After so many that could not be prepared none is tried any more: the script is not made for it."""
SETUP_GUESS_S = 0.5
SETUP_LIMIT_S = 60.0
MEMORY_FACTOR = 2.0


class Owner(Protocol):
    """What this part needs of the executor."""

    hub: Hub
    seq_of: Callable[[int], int]

    def live(self, trial: int) -> Incarnation | None: ...

    def go_live(self, it: Incarnation) -> None: ...


class Preparing:
    """``enabled``: whether these devices allow it."""

    def __init__(
        self,
        owner: Owner,
        paths: ExperimentPaths,
        settings: LaunchSettings,
        server: Server,
        launcher: Launcher,
        stopping: Stopping,
        timers: Timers,
        clock: Callable[[], float],
        say: Callable[[str], None],
        *,
        enabled: bool,
    ) -> None:
        self._owner = owner
        self._paths = paths
        self._settings = settings
        self._server = server
        self._launcher = launcher
        self._stopping = stopping
        self._timers = timers
        self._clock = clock
        self._say = say
        self._enabled = enabled
        self._due: dict[int, Incarnation] = {}
        self._leaving: list[Incarnation] = []
        self._held: list[tuple[Incarnation, Callable[[], None]]] = []
        self._failures = 0
        self._setup_s = SETUP_GUESS_S

    # ------------------------------------------------------------------ who is who

    def find(self, trial: int, number: int) -> Incarnation | None:
        """One that was launched before it was due, and is not one of the live ones."""
        for it in self._all():
            if it.trial == trial and it.number == number:
                return it
        return None

    def knows(self, it: Incarnation) -> bool:
        return self._due.get(it.trial) is it or it in self._leaving

    @property
    def is_busy(self) -> bool:
        return bool(self._due or self._leaving)

    def _all(self) -> Iterator[Incarnation]:
        yield from self._due.values()
        yield from self._leaving

    # ------------------------------------------------------------------ what the driver says

    def expect(self, trial: int, launch: Launch | None, interval_s: float) -> None:
        """See ``Executor.expect``."""
        known = self._due.get(trial)
        if known is not None:
            if launch is None or not _fits(known, launch):
                self._drop(known)
            return
        before = self._owner.live(trial)
        if launch is None or before is None or not self._may_prepare(before, launch):
            return
        it = Incarnation(trial, launch.incarnation, launch.devices, before.paths)
        try:
            self._begin(it, launch)
        except OSError as problem:
            self._failed(it, str(problem))
            self._put_aside(it)
            return
        before.stays = interval_s <= self._setup_s
        self._timers.after(SETUP_LIMIT_S, partial(self._overdue, it))

    def _may_prepare(self, before: Incarnation, launch: Launch) -> bool:
        return (
            self._enabled
            and self._server.ready
            and self._failures < FAILURES_MAX
            and len(self._due) < MOST_AT_ONCE
            and before.is_up
            and before.stop_grace_s is None
            and before.number < launch.incarnation
            and not any(it.trial == before.trial for it in self._leaving)
            and _has_memory(before, len(launch.devices))
        )

    def _begin(self, it: Incarnation, launch: Launch) -> None:
        it.waits = True
        it.sent_at = self._clock()
        self._launcher.prepare(it, launch, self._owner.seq_of(it.trial))
        assert it.spec is not None
        it.spec.waits = True
        it.spec.env["GPUSCHED_WAITS"] = "1"
        mark = {"incarnation": it.number, "devices": list(it.devices)}
        it.paths.waits.write_text(json.dumps(mark))
        self._due[it.trial] = it
        self._launcher.send(it)
        if self._launcher.withdraw(it):  # the server has just died
            del self._due[it.trial]
            raise OSError("the warm server has gone")

    def take(self, command: Launch) -> bool:
        """A launch is due: whether there is one that was prepared for it, which it is now."""
        it = self._due.get(command.trial)
        if it is None:
            return False
        if not (_fits(it, command) and self._owner.seq_of(it.trial) <= it.last_seq):
            self._drop(it)
            return False
        del self._due[it.trial]
        it.waits, it.counts = False, True
        it.tell_that_it_counts()
        self._owner.go_live(it)
        if it.is_ready and it.restored_step is None:
            self._go_on_from_disk(it)
        return True

    def hold(self, it: Incarnation, begin: Callable[[], None]) -> bool:
        """Whether what is to be launched must wait until something dropped is gone; ``begin`` is called then."""
        taken = set(it.devices)
        if not any(one.trial == it.trial or taken & set(one.devices) for one in self._leaving):
            return False
        it.last_seq, it.saved_step = last_seq(it.paths.reports), it.newest_checkpoint()
        self._held.append((it, begin))
        return True

    def withdraw(self, it: Incarnation) -> bool:
        """True if it was held, and now will not be launched."""
        held = [entry for entry in self._held if entry[0] is not it]
        held, self._held = self._held, held
        return len(held) > len(self._held)

    def _go_on_from_disk(self, it: Incarnation) -> None:
        """Its ranks wait, and nothing was handed over."""
        if it.rank_peer is not None:
            it.rank_peer.send(Restore())

    # ------------------------------------------------------------------ what they say

    def waiting(self, it: Incarnation) -> None:
        """All its ranks wait: for the one before it, or, if it counts already, for a word to begin."""
        if not it.waits:
            self._go_on_from_disk(it)
            return
        it.is_ready = True
        self._setup_s = 0.5 * (self._setup_s + self._clock() - it.sent_at)
        before = self._owner.live(it.trial)
        if before is not None:
            before.stays = False
            self._hand_over(before, it)

    def handed(self, before: Incarnation, handed: Handed) -> None:
        """The one before has a checkpoint in memory, and is about to commit it."""
        before.handed = handed
        it = self._due.get(before.trial)
        if it is not None and it.is_ready:
            self._hand_over(before, it)

    def _hand_over(self, before: Incarnation, it: Incarnation) -> None:
        if before.handed is not None and it.restored_step is None and it.rank_peer is not None:
            it.restored_step = before.handed.step
            it.rank_peer.send(Restore(before.handed))

    def taken_back(self, before: Incarnation) -> None:
        """It has reported again: it could not save, and trains on."""
        before.handed = None
        it = self._due.get(before.trial)
        if it is not None and it.restored_step is not None:
            self._drop(it)

    def left(self, before: Incarnation, saved_step: int | None) -> None:
        """The one before has ended, having committed that step on its way out."""
        self.forget_mark(before)
        it = self._due.get(before.trial)
        if it is None:
            return
        it.last_seq, it.saved_step = before.last_seq, before.saved_step
        if it.restored_step is not None and it.restored_step not in (
            saved_step,
            before.saved_step,
        ):
            self._drop(it)

    # ------------------------------------------------------------------ ends

    def _overdue(self, it: Incarnation) -> None:
        if self._due.get(it.trial) is it and not it.is_ready:
            self._failed(it, f"they are not set up after {self._clock() - it.sent_at:.0f} s")
            self._drop(it)

    def _failed(self, it: Incarnation, why: str, *, by_itself: bool = True) -> None:
        self._failures += by_itself
        last = self._failures >= FAILURES_MAX
        then = "from now on resizes wait for it" if last else "this resize waits for it"
        self._say(
            f"trial {it.trial}: its next ranks cannot be set up beside those that train ({why}); {then}"
        )

    def _drop(self, it: Incarnation) -> None:
        """It will not be needed: nothing of it may be left."""
        del self._due[it.trial]
        self._leaving.append(it)
        before = self._owner.live(it.trial)
        if before is not None:
            before.stays = False
        self._stopping.kill(it, 0.0)

    def ended(self, it: Incarnation, ending: Ending) -> None:
        """Nothing is left of one that is not live."""
        if self._due.get(it.trial) is it:
            first = (ending.error or ending.outcome).splitlines()[0]
            self._failed(it, first, by_itself=ending.outcome != "lost")
            del self._due[it.trial]
            before = self._owner.live(it.trial)
            if before is not None:
                before.stays = False
        else:
            self._leaving.remove(it)
        it.unwatch_shim(self._owner.hub)
        it.hang_up()
        self._put_aside(it)
        held, self._held = self._held, []
        for waiting, begin in held:
            if not self.hold(waiting, begin):
                begin()

    def forget_mark(self, it: Incarnation) -> None:
        """It was live, so it counted, whether its shim knew or not."""
        if it.counts or it.waits:
            it.paths.waits.unlink(missing_ok=True)

    def _put_aside(self, it: Incarnation) -> None:
        """Its number is free for the launch that it was to be."""
        logs = it.paths.logs(it.number)
        aside = logs.with_name(f"unused-{it.number}")
        with suppress(OSError):
            shutil.rmtree(aside, ignore_errors=True)
            logs.rename(aside)
        it.paths.waits.unlink(missing_ok=True)

    def server_gone(self) -> None:
        """What it was asked to fork may never come."""
        for it in list(self._due.values()):
            self._drop(it)
        for it in self._leaving:
            it.launched_by = None
            if it.shim is None:
                self._timers.after(0.0, partial(self._end_unclaimed, it))

    def _end_unclaimed(self, it: Incarnation) -> None:
        if it not in self._leaving:
            return
        if it.claim_or_forbid():
            self._stopping.hunt(it)
        else:
            self.ended(it, Ending("killed"))

    # ------------------------------------------------------------------ after a restart of the daemon

    def find_abandoned(self, live: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """End what another daemon had prepared; those of ``live`` (trial, number) that did not count when it went."""
        found = set()
        for trial in trial_folders(self._paths):
            mark = self._paths.trial(trial).waits
            if not mark.exists():
                continue
            about = read_json(mark) or {}
            number = about.get("incarnation")
            if type(number) is not int:
                mark.unlink(missing_ok=True)
                continue
            devices = about.get("devices")
            names = tuple(map(str, devices)) if isinstance(devices, list) else ()
            it = Incarnation(trial, number, names, self._paths.trial(trial))
            it.waits = True
            if (trial, number) in live:
                found.add((trial, number))
                continue
            self._leaving.append(it)
            it.stop_grace_s = 0.0
            self._end_unclaimed(it)
        return found

    def close(self) -> None:
        """Without us they end by themselves."""
        for it in self._all():
            it.unwatch_shim(self._owner.hub)
            it.hang_up()


def _fits(it: Incarnation, launch: Launch) -> bool:
    return it.number == launch.incarnation and it.devices == launch.devices


def _has_memory(before: Incarnation, ranks: int) -> bool:
    """Whether there is room for as many ranks more, each as large as those that train."""
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

"""The live executor: trials as process groups on this machine, one incarnation a process tree.

    commands ──▶ warm server ──forks──▶ shim ──▶ ranks         (``server.py``; ``gpusched/worker``)
    events   ◀── the hub: rank 0's reports, the shim's "tree empty", the server's "shim died", pidfds

Rules:

* Nothing here waits. What takes time comes back as an event of ``poll``.
* An incarnation ends exactly once, with ``TrialExited``, and only when nothing of it is left: its shim says so; or its
  shim died and the server (or, if that is gone too, ``stopping.py``) has killed what was left. What even SIGKILL
  does not end is reported as gone after ``unkillable_after_s`` with its devices marked as held by it.
* Before an end is told, everything its rank 0 wrote has been told: frames first, then its own file.
* Frames of an incarnation that is not the current one are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpusched.core.decisions import Command, ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import (
    Event,
    Reported,
    TrialExited,
    TrialUp,
)
from gpusched.devices.base import Device, Devices, Reading
from gpusched.errors import GpuschedError
from gpusched.executors.base import LiveTrial, Setting
from gpusched.executors.best import BestKeeper
from gpusched.executors.hub import Hub
from gpusched.executors.local.endings import (
    Ending,
    blame_memory,
    how_it_ended,
    lost,
    may_be_the_gpus,
    with_blame,
)
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.intake import Intake
from gpusched.executors.local.inventory import Inventory
from gpusched.executors.local.launching import Launcher
from gpusched.executors.local.prestart import Preparing
from gpusched.executors.local.server import Server
from gpusched.executors.local.settings import LaunchSettings, devices_of, launch_settings
from gpusched.executors.local.speakers import Speakers
from gpusched.executors.local.stopping import Stopping
from gpusched.executors.local.timers import Timers
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.identity import Identity
from gpusched.processes.outcome import sane_exit
from gpusched.protocol import (
    Exited,
    FromServer,
    Launched,
    LaunchFailed,
    PreloadFailed,
    Ready,
    ShimDied,
)

_UNBEGUN = "it had not begun when the daemon ended"
_WARM_UP_AFTER_S = 1.0
"""How long a daemon that took over leaves the processors to those who come back to it, unless it launches something."""


class TorchrunExecutor:
    """Process groups on this machine's devices.

    ``clock`` tells the experiment's time. The experiment's folder exists and its lock is held by the caller, as is the
    ``hub``. Raises ``GpuschedError``.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        devices: Devices,
        settings: LaunchSettings,
        hub: Hub,
        *,
        clock: Callable[[], float],
        epoch: int = 1,
        say: Callable[[str], None] = lambda _text: None,
        seq_of: Callable[[int], int] = lambda _trial: 0,
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        self._paths = paths
        self._devices = devices
        self._settings = settings
        self._clock = clock
        self._say = say
        self._events: list[Event] = []
        self._live: dict[int, Incarnation] = {}
        self._timers = Timers(clock)
        self.seq_of = seq_of
        self._inventory = Inventory(
            devices, self._timers, clock, self._emit, say, settings.release_limit_s
        )
        self._intake = Intake(settings.metric, clock, self._emit, self._fail, say)
        self.hub = hub
        self._speakers = Speakers(self, self._intake, epoch, hub, say)
        self._best = BestKeeper(
            paths, settings.metric, self._timers.after, say, self._atoms_of, spare
        )
        self._server = Server(self.hub, paths, settings, self._server_said, self._server_gone)
        self._launcher = Launcher(paths, devices, settings, self._server, epoch)
        self._stopping = Stopping(self, paths, settings, self._timers, self._inventory)
        self._preparing = Preparing(
            self,
            paths,
            settings,
            self._server,
            self._launcher,
            self._stopping,
            self._timers,
            clock,
            say,
            enabled=settings.prestart and devices.kind == "cpu",
        )
        self.expect = self._preparing.expect
        self._intake.handed = self._preparing.handed
        self._intake.taken_back = self._preparing.taken_back
        self._intake.waiting = self._preparing.waiting
        if epoch > 1:  # trials wait for the daemon that comes back: serve first, then warm up
            self._timers.after(_WARM_UP_AFTER_S, self._server.want)
        else:
            self._server.start()

    # ------------------------------------------------------------------ the seam

    def now(self) -> float:
        return self._clock()

    def inventory(self) -> tuple[Device, ...]:
        return self._inventory.open()

    def execute(self, command: Command) -> None:
        match command:
            case Launch():
                self._launch(command)
            case Yield():
                if (it := self._current(command.trial, command.incarnation)) is not None:
                    it.yields = "yield" if command.save else "leave"
            case Save():
                if (it := self._current(command.trial, command.incarnation)) is not None:
                    it.saves = True
            case Kill():
                if (it := self._current(command.trial, command.incarnation)) is not None:
                    self._stopping.kill(it, command.grace_s, stacks=command.stacks)
            case ConfirmRelease():
                self._inventory.confirm_release(command.devices)
            case KeepBest():
                self._best.keep(command)
            case _:
                pass  # timers, forecasts and the end are the driver's and the daemon's

    def _atoms_of(self, trial: int) -> int | None:
        it = self._live.get(trial)
        return len(it.devices) if it is not None else None

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def acknowledge(self, report: Reported) -> None:
        it = self._live.get(report.trial)
        if it is not None and it.number == report.incarnation:
            it.answer(report.seq)

    def poll(self, until: float) -> Sequence[Event]:
        """Also returns when somebody rang at the hub."""
        self._tick(self.now())
        while not self._events:
            next_at = min(until, self._timers.next_at)
            rung = self.hub.turn(min(max(0.0, next_at - self.now()), 3600.0))
            now = self.now()
            self._tick(now)
            if rung or now >= until:
                break
        events, self._events = self._events, []
        return events

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        uncounted = self._preparing.find_abandoned({(one.trial, one.incarnation) for one in live})
        for one in live:
            self._reconcile(one, counts=(one.trial, one.incarnation) not in uncounted)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Trials, their shims and (until the last of them is gone) the warm server live on."""
        for it in self._live.values():
            it.unwatch_shim(self.hub)
            it.hang_up()
        self._preparing.close()
        self._server.close(idle=not self._live and not self._preparing.is_busy)
        self._devices.close()

    def keep_out(self, device: str, reason: str) -> None:
        self._devices.keep_out(device, reason)

    def readmit(self, device: str, answered: Callable[[str], None]) -> None:
        self._inventory.readmit(device, answered)

    def readings(self) -> Sequence[Reading]:
        return self._devices.readings()

    # ------------------------------------------------------------------ commands

    def _current(self, trial: int, incarnation: int) -> Incarnation | None:
        it = self._live.get(trial)
        return it if it is not None and it.number == incarnation else None

    def _launch(self, command: Launch) -> None:
        known = self._live.get(command.trial)
        if known is not None and known.number >= command.incarnation:
            return
        if self._preparing.take(command):
            return
        paths = self._paths.trial(command.trial)
        it = Incarnation(command.trial, command.incarnation, command.devices, paths)
        self._live[it.trial] = it
        begin = partial(self._begin, it, command)
        if not self._preparing.hold(it, begin):
            begin()

    def _begin(self, it: Incarnation, command: Launch) -> None:
        try:
            self._launcher.prepare(it, command, self.seq_of(it.trial))
        except (OSError, GpuschedError) as problem:
            self.end(it, lost(f"it could not be launched: {problem}"))
            return
        self._launcher.send(it)

    # ------------------------------------------------------------------ who speaks

    def known(self, trial: int, incarnation: int) -> Incarnation | None:
        """Who may be named; while something of the same number that was dropped is left, that."""
        return self._preparing.find(trial, incarnation) or self._current(trial, incarnation)

    def joined(self, it: Incarnation) -> None:
        """All of its ranks have."""
        if not it.waits and not it.is_up:
            self._is_up(it)

    def _is_up(self, it: Incarnation) -> None:
        it.is_up = True
        self._emit(TrialUp(at=self.now(), trial=it.trial, incarnation=it.number))

    def watch(self, it: Incarnation, shim: Identity) -> bool:
        """Notice when its shim ends. False if it has ended."""
        return it.watch_shim(self.hub, shim, partial(self._stopping.shim_gone, it))

    def _fail(self, it: Incarnation, why: str) -> None:
        """The trial did what it must not: it is ended, and failed for this reason."""
        it.fault = why
        self._stopping.kill(it, 0.0)

    # ------------------------------------------------------------------ ends

    def is_live(self, it: Incarnation) -> bool:
        """Whether it is current and has not ended."""
        return self._live.get(it.trial) is it or self._preparing.knows(it)

    def live(self, trial: int) -> Incarnation | None:
        return self._live.get(trial)

    def go_live(self, it: Incarnation) -> None:
        """It was launched before it was due, and now it is."""
        self._live[it.trial] = it
        if it.is_ready:
            self._is_up(it)

    def withdraw(self, it: Incarnation) -> bool:
        """True if its launch had not begun, and now will not."""
        return self._preparing.withdraw(it) or self._launcher.withdraw(it)

    def has_server(self, it: Incarnation) -> bool:
        """Whether the server that forked its shim is there to clean up after it."""
        return it.launched_by is not None and it.launched_by == self._server.pid

    def shim_said(self, it: Incarnation, frame: Exited) -> None:
        record = sane_exit(frame.record)
        if record is not None and self.is_live(it):
            self.end(it, how_it_ended(it, record))

    def end(self, it: Incarnation, ending: Ending) -> None:
        """The one place where an incarnation ends: now, or when its GPUs have been looked at."""
        if self._preparing.knows(it):
            self._preparing.ended(it, ending)
            return
        if it.waits:
            ending = Ending("lost", error=_UNBEGUN, unbegun=True)
        if it.fault is None:
            ending = blame_memory(it, ending, self._inventory.strangers)
            if may_be_the_gpus(ending):
                self._inventory.examine(
                    it.devices, lambda fault: self._end(it, with_blame(ending, fault))
                )
                return
        self._end(it, ending)

    def _end(self, it: Incarnation, ending: Ending) -> None:
        if not self.is_live(it):
            return
        if it.rank_peer is not None:
            it.rank_peer.drain()
        self._intake.catch_up(it)
        self._intake.catch_up_saved(it, ending.saved_step)
        it.unwatch_shim(self.hub)
        it.hang_up()
        del self._live[it.trial]
        self._preparing.left(it, ending.saved_step)
        if it.fault is not None:
            ending = Ending("failed", step=ending.step, error=it.fault)
        self._emit(
            TrialExited(
                at=self.now(),
                trial=it.trial,
                incarnation=it.number,
                outcome=ending.outcome,
                step=ending.step,
                saved_step=ending.saved_step,
                error=ending.error,
                barred=ending.barred,
                unbegun=ending.unbegun,
            )
        )

    # ------------------------------------------------------------------ the server

    def _server_said(self, frame: FromServer) -> None:
        match frame:
            case Ready():
                self._launcher.flush()
            case Launched():
                if (it := self.known(frame.trial, frame.incarnation)) is not None:
                    it.launched_by = self._server.pid
                    self._stopping.limit_birth(it)
                    began = frame.start_time
                    if began is None or not self.watch(it, Identity(frame.pid, began)):
                        self._timers.after(0.0, partial(self._stopping.shim_gone, it))
            case ShimDied():
                it = self.known(frame.trial, frame.incarnation)
                if it is not None and it.shim is not None and it.shim.pid == frame.pid:
                    self.end(it, how_it_ended(it, None, status=frame.status))
            case LaunchFailed():
                if (it := self.known(frame.trial, frame.incarnation)) is not None:
                    self.end(it, lost(f"it could not be launched: {frame.message}"))
            case PreloadFailed():
                self._say(f"preload: {frame.module} is not preloaded: {frame.message}")
                self._server.never_again(frame.module, tainted=frame.tainted)
            case _:
                pass

    def _server_gone(self) -> None:
        """Start another. What it had been asked to launch is asked again, unless a shim has claimed it."""
        self._say("the warm server ended; starting another")
        self._preparing.server_gone()
        for it in self._live.values():
            it.launched_by = None
            if it.shim is None and it.spec is not None:
                if it.claim() is None:
                    self._launcher.send(it)
                elif not self._adopt(it):
                    self._timers.after(0.0, partial(self._stopping.shim_gone, it))
        self._timers.after(self._server.pause_s, self._server.want_again)

    # ------------------------------------------------------------------ after a restart of the daemon

    def _reconcile(self, one: LiveTrial, *, counts: bool) -> None:
        """``counts``: false if it was launched before it was due, and was not told that it was due now."""
        paths = self._paths.trial(one.trial)
        it = Incarnation(one.trial, one.incarnation, one.devices, paths)
        it.last_seq, it.saved_step = one.last_seq, one.saved_step
        self._live[it.trial] = it
        it.waits = not counts
        if not it.claim_or_forbid():
            self.end(it, Ending("lost", error=_UNBEGUN, unbegun=True))
        elif not counts:
            self._stopping.hunt(it)
        elif (record := it.exit_record()) is not None:
            self.end(it, how_it_ended(it, record))
        elif self._adopt(it):
            self._intake.catch_up(it)
            self._intake.catch_up_saved(it)
        else:
            self._stopping.hunt(it)

    def _adopt(self, it: Incarnation) -> bool:
        """Watch over the shim that another daemon, or another server, has started. False if it has ended."""
        claim = it.claim()
        if claim is None or claim.shim is None or not claim.is_alive:
            return False
        return self.watch(it, claim.shim)

    # ------------------------------------------------------------------ time

    def _tick(self, now: float) -> None:
        """Do what is due."""
        if now >= self._timers.next_at:
            self._timers.run_due()


def make(setting: Setting) -> TorchrunExecutor:
    """The local executor, on the devices that the recipe names. Raises DeviceError, InputError."""
    return TorchrunExecutor(
        setting.paths,
        devices_of(setting.recipe, setting.paths.root, setting.devices),
        launch_settings(setting.recipe),
        setting.hub,
        clock=setting.clock,
        epoch=setting.epoch,
        say=setting.say,
        seq_of=setting.seq_of,
        spare=setting.spare,
    )

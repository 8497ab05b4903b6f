"""The live executor: trials as process groups on this machine, one incarnation a process tree.

    commands ──▶ warm server ──forks──▶ shim ──▶ ranks         (``server.py``; ``gpusched/worker``)
    events   ◀── the hub: rank 0's reports, the shim's "tree empty", the server's "shim died", pidfds

Rules:

* Nothing here waits. What takes time comes back as an event of ``poll``.
* An incarnation ends exactly once, with ``TrialExited``, and only when nothing of it is left: its shim says so; or its
  shim died and the server (or, if that is gone too, ``stopping.py``) has killed what was left. What even SIGKILL
  does not end is reported as gone after ``unkillable_after_s``; its devices prove themselves whether it is on them.
* Before an end is told, everything its rank 0 wrote has been told: frames first, then its own file.
* Frames of an incarnation that is not the current one are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpusched.core.commands import Command, ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import Event, Reported, TrialExited
from gpusched.devices.base import Device, Devices, Reading
from gpusched.errors import GpuschedError
from gpusched.executors.base import LiveTrial, Setting
from gpusched.executors.hub import Peer
from gpusched.executors.live import LiveBase
from gpusched.executors.local import endings
from gpusched.executors.local.endings import how_it_ended
from gpusched.executors.local.incarnation import Incarnation, Limits, Shared
from gpusched.executors.local.inventory import Inventory
from gpusched.executors.local.launching import devices_of, prepare
from gpusched.executors.local.server import Server
from gpusched.executors.local.stopping import Stopping
from gpusched.processes.identity import Identity
from gpusched.protocol import (
    Exited,
    FromServer,
    Greeting,
    Launched,
    LaunchFailed,
    RankHello,
    ShimDied,
    ShimHello,
    from_shim,
)

_UNBEGUN = "it had not begun when the daemon ended"
_WARM_UP_AFTER_S = 1.0
"""Time for which a daemon that took over leaves the processors to returning ranks, unless it launches something."""


class TorchrunExecutor(LiveBase):
    """Process groups on this machine's devices.

    The experiment's folder exists and its lock is held by the caller, as is the hub. Raises ``GpuschedError``.
    """

    def __init__(self, setting: Setting, devices: Devices, limits: Limits | None = None) -> None:
        super().__init__(setting)
        limits, timers, self._say = limits or Limits(), self._timers, setting.say
        emit = self._events.append
        self.shared = Shared(
            setting=setting,
            limits=limits,
            timers=timers,
            emit=emit,
            end=self._end,
            kill=lambda incarnation, grace_s: self.stopping.kill(incarnation, grace_s),
        )
        self._devices = devices
        self._inventory = Inventory(devices, timers, emit, self._say, limits.release_s)
        self.server = Server(setting, self._server_said, self._server_gone, self.shared.waited_s)
        self.stopping = Stopping(self.shared, self.server)
        setting.hub.register(RankHello, self._take_rank)
        setting.hub.register(ShimHello, self._take_shim)
        if setting.epoch > 1:  # trials wait for the daemon that comes back: serve first
            timers.after(_WARM_UP_AFTER_S, self.server.want)
        else:
            self.server.start()

    # ------------------------------------------------------------------ the seam

    def inventory(self) -> tuple[Device, ...]:
        return self._inventory.open()

    def execute(self, command: Command) -> None:
        match command:
            case Launch():
                self._launch(command)
            case Yield(trial, number, save):
                if (incarnation := self.shared.find(trial, number)) is not None:
                    incarnation.yields = "yield" if save else "leave"
            case Save(trial, number, hold):
                if (incarnation := self.shared.find(trial, number)) is not None:
                    incarnation.holds, incarnation.saves = hold, incarnation.saves or not hold
            case Kill(trial, number, grace_s, stacks):
                if (incarnation := self.shared.find(trial, number)) is not None:
                    self.stopping.kill(incarnation, grace_s, stacks=stacks)
            case ConfirmRelease():
                self._inventory.confirm_release(command.devices)
            case KeepBest():
                self._best.keep(command)
            case _:
                pass  # timers, forecasts and the end are the driver's and the daemon's

    def acknowledge(self, report: Reported) -> None:
        incarnation = self.shared.find(report.trial, report.incarnation)
        if incarnation is not None:
            incarnation.answer(report.seq)

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        for one in live:
            self._reconcile(one)
        # A device counts as held, too, if a process of ours was seen there that is no trial's any more.
        used = {name for left in self.shared.current.values() for name in left.devices}
        self._inventory.drain([one.id for one in self.inventory() if one.id not in used])
        return self._told()

    def close(self) -> None:
        """Let go: trials, shims and (until the last is gone) the warm server live on."""
        left = list(self.shared.current.values())
        for incarnation in left:
            incarnation.hang_up(self._hub)
        self.server.close(idle=not left)
        self._devices.close()

    def keep_out(self, device: str, reason: str) -> None:
        self._devices.keep_out(device, reason)

    def readings(self) -> Sequence[Reading]:
        return self._devices.readings()

    # ------------------------------------------------------------------ launches

    def _launch(self, command: Launch) -> None:
        known = self.shared.current.get(command.trial)
        if known is not None and known.number >= command.incarnation:
            return
        incarnation = self._enter(command.trial, command.incarnation, command.devices)
        try:
            spec = prepare(incarnation, command, self._devices)
            self._devices.take(command.devices)
        except (OSError, GpuschedError) as problem:
            why = f"it could not be launched: {problem}"
            self._end(incarnation, incarnation.exited("lost", why))
            return
        self.server.launch(spec)

    def _enter(self, trial: int, number: int, devices: tuple[str, ...]) -> Incarnation:
        paths = self._paths.trial(trial)
        incarnation = Incarnation(self.shared, trial, number, devices, paths)
        self.shared.current[trial] = incarnation
        return incarnation

    # ------------------------------------------------------------------ connections

    def _take_rank(self, hello: RankHello, peer: Peer) -> bool:
        incarnation = self.shared.find(hello.trial, hello.incarnation)
        if incarnation is not None:
            incarnation.take_rank(peer)
        return incarnation is not None

    def _take_shim(self, hello: ShimHello, peer: Peer) -> bool:
        incarnation = self.shared.find(hello.trial, hello.incarnation)
        shim = Identity(hello.pid, hello.start_time)
        if incarnation is None or (incarnation.shim is not None and incarnation.shim != shim):
            return False
        incarnation.shim_peer = peer
        peer.send(Greeting(self._setting.epoch))
        peer.hear(from_shim, partial(self._exited, incarnation))
        if incarnation.pidfd is None:
            self.stopping.watch(incarnation, shim)
        incarnation.tell_shim()
        return True

    def _exited(self, incarnation: Incarnation, frame: Exited) -> None:
        if not self.shared.has(incarnation):
            return
        if frame.record.overran_s is not None:
            self._say(
                f"trial {incarnation.trial}: its script had not ended {frame.record.overran_s:g} s after its last "
                f"checkpoint was saved, and was ended; if it needs longer to tidy up, set `leave_grace` in the recipe"
            )
        self._end(incarnation, how_it_ended(incarnation, frame.record))

    # ------------------------------------------------------------------ ends

    def _end(self, incarnation: Incarnation, ending: TrialExited) -> None:
        """The one place where an incarnation ends."""
        if incarnation.fault is None:
            ending = endings.blame_memory(incarnation, ending, self._inventory.strangers)
            ending = endings.blame_hardware(ending)
        self._tell_end(incarnation, ending)

    def _tell_end(self, incarnation: Incarnation, ending: TrialExited) -> None:
        """Tell all that the incarnation has said, then its end."""
        if not self.shared.has(incarnation):
            return
        if incarnation.rank_peer is not None:
            incarnation.rank_peer.drain()
        incarnation.catch_up(ending.saved_step)
        incarnation.hang_up(self._hub)
        del self.shared.current[incarnation.trial]
        self._inventory.drain(incarnation.devices)
        if incarnation.fault is not None:
            ending = incarnation.exited("failed", incarnation.fault, step=ending.step)
        ending.at = self.now()
        self._events.append(ending)

    # ------------------------------------------------------------------ the server

    def _server_said(self, frame: FromServer) -> None:
        named = self.shared.find
        match frame:
            case Launched():
                if (incarnation := named(frame.trial, frame.incarnation)) is not None:
                    incarnation.launched_by = self.server.pid
                    self.stopping.limit_birth(incarnation)
                    began = frame.start_time
                    shim = Identity(frame.pid, began) if began is not None else None
                    if shim is None or not self.stopping.watch(incarnation, shim):
                        self._shim_gone_soon(incarnation)
            case ShimDied():
                incarnation = named(frame.trial, frame.incarnation)
                shim = incarnation.shim if incarnation is not None else None
                if incarnation is not None and shim is not None and shim.pid == frame.pid:
                    ending = how_it_ended(incarnation, None, status=frame.status)
                    self._end(incarnation, ending)
            case LaunchFailed():
                if (incarnation := named(frame.trial, frame.incarnation)) is not None:
                    why = f"it could not be launched: {frame.message}"
                    self._end(incarnation, incarnation.exited("lost", why))
            case _:
                pass

    def _shim_gone_soon(self, incarnation: Incarnation) -> None:
        self._timers.after(0.0, partial(self.stopping.shim_gone, incarnation))

    def _server_gone(self) -> None:
        """Start another. A launch that no shim has claimed is asked for again."""
        self._say("the warm server ended; starting another")
        for incarnation in self.shared.current.values():
            incarnation.launched_by = None
            if incarnation.shim is None and incarnation.spec is not None:
                if incarnation.claim() is None:
                    self.server.launch(incarnation.spec)
                elif not self._adopt(incarnation):
                    self._shim_gone_soon(incarnation)
        self._timers.after(self.server.pause_s, self.server.want_again)

    # ------------------------------------------------------------------ after a restart of the daemon

    def _reconcile(self, one: LiveTrial) -> None:
        """Find out what became of an incarnation."""
        incarnation = self._enter(one.trial, one.incarnation, one.devices)
        incarnation.last_seq, incarnation.saved_step = one.last_seq, one.saved_step
        self._devices.take(one.devices)  # until the end of what may be on them
        if not incarnation.claim_or_forbid():
            self._end(incarnation, incarnation.exited("lost", _UNBEGUN, unbegun=True))
        elif (record := incarnation.exit_record()) is not None:
            self._end(incarnation, how_it_ended(incarnation, record))
        elif self._adopt(incarnation):
            incarnation.catch_up()
        else:
            self.stopping.hunt(incarnation)

    def _adopt(self, incarnation: Incarnation) -> bool:
        """Watch over the shim that another daemon, or another server, has started. False if it has ended."""
        claim = incarnation.claim()
        if claim is None or claim.shim is None or not claim.is_alive:
            return False
        return self.stopping.watch(incarnation, claim.shim)


def make(setting: Setting) -> TorchrunExecutor:
    """The local executor, on the devices that the recipe names. Raises DeviceError, InputError."""
    devices = devices_of(setting.recipe, setting.paths.root, setting.devices)
    return TorchrunExecutor(setting, devices)

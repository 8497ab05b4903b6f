"""The live executor: trials as process groups on this machine, one incarnation a process tree.

    commands ──▶ warm server ──forks──▶ shim ──▶ ranks         (``launching.py``; ``gpusched/runtime``)
    events   ◀── the hub: rank 0's reports, the shim's "tree empty", the server's "shim died", pidfds

Rules:

* Nothing here waits. What takes time comes back as an event of ``poll``.
* An incarnation ends exactly once, with ``TrialExited``, and only when nothing of it is left: its shim says so; or its
  shim died and the server (or, if that is gone too, ``Incarnation.hunt``) has killed what was left. What even SIGKILL
  does not end is reported as gone after ``UNKILLABLE_AFTER_S``; its devices prove themselves whether it is on them.
* Before an end is told, everything its rank 0 wrote has been told: frames first, then its own file.
* Frames of an incarnation that is not the current one are refused.
* A launch that is lost lasts ``LOST_LAUNCH_S``: a machine at one of its limits is not asked without a pause. A launch
  without any process is no fault of its trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpusched.core.commands import Command, ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import Event, Reported, TrialExited
from gpusched.devices.base import (
    REST_S,
    Device,
    DeviceEvent,
    DeviceRemark,
    Devices,
    Quarantined,
    Reading,
)
from gpusched.errors import GpuschedError
from gpusched.executors.base import FOREVER, LiveTrial
from gpusched.executors.hub import Peer
from gpusched.executors.live import LOST_LAUNCH_S, LiveExecutor, Setting, Timers, as_event
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.launching import Server, devices_of, prepare
from gpusched.folder.paths import commit_left
from gpusched.processes import outcome
from gpusched.processes.identity import Identity, boot_id
from gpusched.protocol import (
    Exited,
    Greeting,
    Launched,
    LaunchFailed,
    RankHello,
    ShimDied,
    ShimHello,
    from_shim,
)

_UNBEGUN = "it had not begun when the daemon ended"
RELEASE_LIMIT_S = 60.0
#: Within this time the driver says of a GPU that it is lost: then its trial has not failed.
LOST_WITHIN_S = 2.5


@dataclass(slots=True, kw_only=True)
class Shared:
    """All that every incarnation works with.

    ``emit`` takes events; ``end`` is called with each incarnation of which nothing is left, and how it ended (None: as
    its files say).
    """

    setting: Setting
    timers: Timers
    server: Server
    emit: Callable[[Event], None]
    end: Callable[[Incarnation, TrialExited | None], None]
    #: The incarnation of each trial of which processes may be left.
    current: dict[int, Incarnation] = field(default_factory=dict)
    _told: set[object] = field(default_factory=set)

    def find(self, trial: int, number: int) -> Incarnation | None:
        """Return the incarnation of this trial if it is the current one."""
        incarnation = self.current.get(trial)
        return incarnation if incarnation is not None and incarnation.number == number else None

    def say_once(self, about: object, said: str) -> None:
        """Tell people of something once in the life of this daemon."""
        if about not in self._told:
            self._told.add(about)
            self.setting.say(said)


class TorchrunExecutor(LiveExecutor):
    """Process groups on this machine's devices, whose ``Host`` it is.

    The experiment's folder exists and its lock is held by the caller, as is the hub. Raises ``GpuschedError``.
    """

    def __init__(self, setting: Setting, devices: Devices) -> None:
        super().__init__(setting)
        self._devices = devices
        self._listed: tuple[Device, ...] | None = None
        self.after = self._timers.after
        self.server = Server(setting, self._server_said, self._server_gone)
        self.shared = Shared(
            setting=setting,
            timers=self._timers,
            server=self.server,
            emit=self._events.append,
            end=self._end,
        )
        setting.hub.register(RankHello, self._take_rank)
        setting.hub.register(ShimHello, self._take_shim)
        self.server.want()

    # ------------------------------------------------------------------ the seam

    def inventory(self) -> tuple[Device, ...]:
        if self._listed is None:
            self._listed = self._devices.open(self)
        return self._listed

    def execute(self, command: Command) -> None:
        match command:
            case Launch():
                self._launch(command)
            case Yield() | Save() | Kill():
                incarnation = self.shared.find(command.trial, command.incarnation)
                if incarnation is not None:
                    incarnation.obey(command)
            case ConfirmRelease():
                self._devices.confirm_release(command.devices, RELEASE_LIMIT_S)
            case KeepBest():
                self._keep_best(command)
            case _:
                pass  # a sampler is the driver's

    def acknowledge(self, report: Reported) -> None:
        incarnation = self.shared.find(report.trial, report.incarnation)
        if incarnation is not None:
            incarnation.answer(report.seq)

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        for one in live:
            self._reconcile(one)
        # A device counts as held, too, if a process of ours was seen there that is no trial's any more.
        used = {name for left in self.shared.current.values() for name in left.devices}
        self._devices.drain([one.id for one in self.inventory() if one.id not in used])
        return self._told()

    def close(self) -> None:
        """Let go: trials, shims and (until the last is gone) the warm server live on."""
        left = list(self.shared.current.values())
        for incarnation in left:
            incarnation.hang_up()
        self.server.close(idle=not left)
        self._devices.close()

    def keep_out(self, device: str, reason: str) -> None:
        self._devices.keep_out(device, reason)

    def readings(self) -> Sequence[Reading]:
        return self._devices.readings()

    # ------------------------------------------------------------------ devices

    def emit(self, event: DeviceEvent) -> None:
        """Take an event of the devices; see ``devices.base.Host``."""
        if isinstance(event, DeviceRemark):
            self._setting.say(event.text)
        else:
            self._events.append(as_event(event, self.now()))

    def _let_rest(self, devices: Sequence[str], ending: TrialExited) -> None:
        """Take a GPU out of use on which a trial could not begin, or had no room: the next one could not either."""
        ending.unbegun, why = True, f"trial {ending.trial}: {ending.error}"
        for device in devices:
            self.emit(Quarantined(device, why))
            self._devices.keep_out(device, why, REST_S)

    # ------------------------------------------------------------------ launches

    def _launch(self, command: Launch) -> None:
        known = self.shared.current.get(command.trial)
        if known is not None and known.number >= command.incarnation:
            return
        incarnation = self._enter(command.trial, command.incarnation, command.devices)
        incarnation.saved_step = incarnation.paths.newest_checkpoint()
        incarnation.asked_at = self.now()
        try:
            spec, incarnation.last_seq = prepare(self._setting, command, self._devices)
            self._devices.take(command.devices)
        except (OSError, GpuschedError) as problem:
            self._not_launched(incarnation, str(problem))
            return
        incarnation.spec = spec
        self.server.launch(spec)

    def _enter(self, trial: int, number: int, devices: tuple[str, ...]) -> Incarnation:
        paths = self._paths.trial(trial)
        incarnation = Incarnation(self.shared, trial, number, devices, paths)
        self.shared.current[trial] = incarnation
        return incarnation

    def _not_launched(self, incarnation: Incarnation, why: str) -> None:
        incarnation.spec = None  # another server is not asked for it
        error = f"it could not be launched: {why}"
        self._end(incarnation, incarnation.exited("lost", error, unbegun=True))

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
            incarnation.watch_shim(shim)
        incarnation.tell_shim()
        return True

    def _exited(self, incarnation: Incarnation, frame: Exited) -> None:
        if not incarnation.is_current:
            return
        if frame.record.overran_s is not None:
            self._setting.say(
                f"trial {incarnation.trial}: its script had not ended {frame.record.overran_s:g} s after its last "
                f"checkpoint was saved, and was ended; if it needs longer to tidy up, set `leave_grace` in the recipe"
            )
        self._end(incarnation, incarnation.ending(frame.record))

    def _end(
        self, incarnation: Incarnation, ending: TrialExited | None = None, *, waited: bool = False
    ) -> None:
        """Tell all that an incarnation has said, then its end: the one place where it ends."""
        if not incarnation.is_current:
            return
        ending = ending or incarnation.ending()
        if not waited and (wait_s := self._wait_s(incarnation, ending)) > 0:
            self.after(wait_s, partial(self._end, incarnation, ending, waited=True))
            return
        names = incarnation.devices
        if ending.outcome == "failed" and ending.error is not None:
            readings = self._devices.readings()
            seen = [one for one in readings if one.device in names]
            strangers = [who for one in seen for who in one.strangers]
            most = max((one.memory_total_bytes or 0 for one in readings), default=0)
            is_small = len(seen) == 1 and 1.1 * (seen[0].memory_total_bytes or 0) < most
            numbers = range(incarnation.trial + 1)
            trained = self._devices.kind == "cuda" and any(map(self._setting.seq_of, numbers))
            reported = self._setting.seq_of(incarnation.trial) > 0
            blamed = outcome.blame(
                ending.error,
                len(names),
                strangers,
                has_trained=trained,
                has_reported=reported,
                is_small=is_small,
            )
            ending.outcome, ending.error, rank = blamed
            if ending.error.startswith("a disk is to blame"):
                self._setting.refused()
            cannot_begin = trained and incarnation.spec and not incarnation.is_up
            if rank is not None and (cannot_begin or ending.error == outcome.SMALL):
                self._let_rest(names[rank : rank + 1], ending)
        if incarnation.rank_peer is not None:
            incarnation.rank_peer.drain()
        commit_left(incarnation.paths.checkpoints, boot_id())
        incarnation.catch_up(ending.saved_step)
        incarnation.hang_up()
        del self.shared.current[incarnation.trial]
        self._devices.drain(names)
        ending.at = self.now()
        self._events.append(ending)

    def _wait_s(self, incarnation: Incarnation, ending: TrialExited) -> float:
        """Return how long to keep an end back: its cause may yet be told, or the next launch would follow too soon."""
        if ending.outcome == "lost" and incarnation.asked_at < FOREVER:
            return incarnation.asked_at + LOST_LAUNCH_S - self.now()
        may_be_a_gpus = ending.outcome == "failed" and self._devices.kind == "cuda"
        is_waited = may_be_a_gpus and outcome.may_be_a_lost_gpus(ending.error or "")
        return LOST_WITHIN_S if is_waited else 0.0

    # ------------------------------------------------------------------ the server

    def _server_said(self, frame: Launched | LaunchFailed | ShimDied) -> None:
        incarnation = self.shared.find(frame.trial, frame.incarnation)
        if incarnation is None:
            return
        match frame:
            case Launched(pid=pid, start_time=began):
                if incarnation.shim is not None and incarnation.shim.pid != pid:
                    return  # a server that died forked the one that has the claim
                if began is None or not incarnation.watch_shim(Identity(pid, began)):
                    self.after(0.0, incarnation.shim_gone)
            case ShimDied(pid=pid, status=status):
                is_its = incarnation.shim is not None and incarnation.shim.pid == pid
                if is_its and not incarnation.adopt():
                    incarnation.shim_status = status
                    incarnation.hunt()
            case LaunchFailed(message=message):
                self._not_launched(incarnation, message)

    def _server_gone(self) -> None:
        """Start another. A launch that no shim has claimed is asked for again."""
        self._setting.say("the warm server ended (see warm.log); starting another")
        for incarnation in self.shared.current.values():
            if incarnation.shim is None and incarnation.spec is not None:
                if incarnation.claim() is None:
                    self.server.launch(incarnation.spec)
                elif not incarnation.adopt():
                    self.after(0.0, incarnation.shim_gone)
        self.server.want()

    # ------------------------------------------------------------------ after a restart of the daemon

    def _reconcile(self, one: LiveTrial) -> None:
        """Find out what became of an incarnation."""
        incarnation = self._enter(one.trial, one.incarnation, one.devices)
        incarnation.last_seq, incarnation.saved_step = one.last_seq, one.saved_step
        self._devices.take(one.devices)  # until the end of what may be on them
        if not incarnation.claim_or_forbid():
            self._end(incarnation, incarnation.exited("lost", _UNBEGUN, unbegun=True))
        elif outcome.read_exit(incarnation.paths, incarnation.number) is not None:
            self._end(incarnation)
        elif incarnation.adopt():
            incarnation.catch_up()
        else:
            incarnation.hunt()


def make(setting: Setting) -> TorchrunExecutor:
    """The local executor, on the devices that the recipe names. Raises DeviceError, InputError."""
    devices = devices_of(setting.recipe, setting.paths.root, setting.devices)
    return TorchrunExecutor(setting, devices)

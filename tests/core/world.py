"""A machine that hypothesis plays with: processes, devices and checkpoints as they could really be.

It carries out commands and knows which events can happen next. It is strict: a launch on a device that is not clean, a
command for an incarnation that never was, a best model that is not on disk are AssertionErrors. Not to be confused with
``sim.SimExecutor``, which decides by itself what happens next; here every choice is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusched.core.commands import (
    Command,
    ConfirmRelease,
    Finish,
    Forecast,
    KeepBest,
    Kill,
    Launch,
    Save,
    SetTimer,
    Yield,
)


@dataclass
class Process:
    """One incarnation that runs."""

    trial: int
    incarnation: int
    devices: tuple[str, ...]
    step: int
    is_up: bool = False
    told_to_leave: bool = False
    saves: bool = False
    killed: bool = False


@dataclass
class Disk:
    """What stays of a trial between its incarnations."""

    seq: int = 0
    step: int = 0
    saved_step: int = 0
    launches: int = 0
    #: Metrics by step, as last reported; and every (step, metric) ever reported.
    metrics: dict[int, float | None] = field(default_factory=dict)
    reported: set[tuple[int, float | None]] = field(default_factory=set)
    saved_steps: set[int] = field(default_factory=set)


class World:
    def __init__(self, devices: tuple[str, ...]) -> None:
        self.devices = devices
        self.processes: dict[int, Process] = {}
        self.disks: dict[int, Disk] = {}
        #: Devices that nothing of ours is on and that have been confirmed so.
        self.clean = set(devices)
        #: Devices somebody waits to be confirmed.
        self.to_confirm: set[str] = set()
        self.quarantined: set[str] = set()
        self.timers: dict[str, float] = {}
        self.forecasts: list[Forecast] = []
        self.best: KeepBest | None = None
        self.finished: str | None = None

    # ------------------------------------------------------------ commands

    def execute(self, command: Command, hparams: Mapping[int, Mapping[str, object]]) -> None:
        assert self.finished is None, f"{command} after the end"
        match command:
            case Launch():
                assert command.hparams == hparams[command.trial]
                self._launch(command)
            case Yield():
                process = self._process(command.trial, command.incarnation)
                process.told_to_leave = True
                process.saves = process.saves or command.save
            case Save():
                self._process(command.trial, command.incarnation).saves = True
            case Kill():
                self._process(command.trial, command.incarnation).killed = True
            case ConfirmRelease():
                self._confirm(command)
            case SetTimer():
                self.timers[command.timer] = command.at
            case Forecast():
                self.forecasts.append(command)
            case KeepBest():
                self._keep(command)
            case Finish():
                assert not self.processes, "the end, with processes"
                self.finished = command.reason

    def _launch(self, command: Launch) -> None:
        disk = self.disks.setdefault(command.trial, Disk())
        assert command.trial not in self.processes, f"{command}: it still runs"
        assert command.incarnation == disk.launches + 1, f"{command}: a jump of incarnations"
        assert command.devices, f"{command} on nothing"
        for device in command.devices:
            assert device in self.clean, f"{command}: {device} is not clean"
            assert device not in self.quarantined, f"{command}: {device} is in quarantine"
        self.clean -= set(command.devices)
        disk.launches += 1
        disk.step = disk.saved_step
        self.processes[command.trial] = Process(
            command.trial, command.incarnation, command.devices, disk.saved_step
        )

    def _process(self, trial: int, incarnation: int) -> Process:
        process = self.processes.get(trial)
        assert process is not None, f"trial {trial} has no processes"
        assert process.incarnation == incarnation, f"trial {trial}: the wrong incarnation"
        return process

    def _confirm(self, command: ConfirmRelease) -> None:
        for device in command.devices:
            assert device not in self.clean, f"{command}: {device} is clean already"
            assert self.user_of(device) is None, f"{command}: {device} is in use"
            self.to_confirm.add(device)

    def _keep(self, command: KeepBest) -> None:
        disk = self.disks[command.trial]
        assert command.step in disk.saved_steps, f"{command} is not on disk"
        assert (command.step, command.metric) in disk.reported, f"{command} was never reported"
        self.best = command

    # ------------------------------------------------------------ what can happen

    def user_of(self, device: str) -> Process | None:
        return next((p for p in self.processes.values() if device in p.devices), None)

    def gone(self, process: Process) -> None:
        """Its processes have ended. Its devices are unclean until somebody has looked."""
        del self.processes[process.trial]

    def saved(self, process: Process, step: int) -> None:
        disk = self.disks[process.trial]
        disk.saved_step = max(step, disk.saved_step)
        disk.saved_steps.add(step)

    def join(self, devices: tuple[str, ...]) -> None:
        self.devices += devices
        self.clean |= set(devices)

    def released(self, devices: set[str]) -> None:
        self.to_confirm -= devices
        self.clean |= devices - self.quarantined

    def quarantine(self, device: str) -> None:
        self.quarantined.add(device)
        self.clean.discard(device)
        self.to_confirm.discard(device)

    def readmit(self, device: str) -> None:
        self.quarantined.discard(device)
        self.clean.add(device)

    def can_readmit(self) -> list[str]:
        return sorted(device for device in self.quarantined if self.user_of(device) is None)

    def something_can_happen(self) -> bool:
        """Whether the experiment can go on without anybody's help."""
        return bool(self.processes or self.to_confirm or self.timers or self.forecasts)

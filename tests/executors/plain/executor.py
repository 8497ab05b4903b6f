"""Trials as plain subprocesses on slots: no torchrun, no warm server, nothing that outlives a daemon.

A daemon finds it by its package's name (``--executor tests.executors.plain``). A trial that its daemon left behind is
ended by the next one, and is lost.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.core.commands import Command, ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    Reported,
    TrialExited,
    TrialUp,
)
from gpusched.devices.base import Device, Reading
from gpusched.executors.base import LiveTrial
from gpusched.executors.best import keep_best
from gpusched.executors.hub import Peer
from gpusched.executors.live import Setting
from gpusched.folder.files import private_folder
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.identity import MARK, kill_each, mark_of, of_incarnation
from gpusched.processes.outcome import first_error, last_word, verdict
from gpusched.protocol import Answer, Go, Greeting, RankHello, Report, Saved, from_rank

SLOTS = 4


@dataclass
class Group:
    """The ranks of one incarnation."""

    trial: int
    number: int
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    peer: Peer | None = None
    go: Go = "continue"
    seq: int = 0
    unanswered: int | None = None
    is_killed: bool = False

    def signal(self, number: int) -> None:
        for rank in self.ranks:
            rank.send_signal(number)


class PlainExecutor:
    """See ``LiveExecutor``."""

    def __init__(self, setting: Setting) -> None:
        self._paths: ExperimentPaths = setting.paths
        self._recipe: Any = setting.recipe
        self._hub = setting.hub
        self._seq_of = setting.seq_of
        self._events: list[Event] = []
        self._groups: dict[int, Group] = {}
        self._kills: list[tuple[float, Group]] = []
        self.now = setting.clock
        setting.hub.register(RankHello, self._take)

    # ------------------------------------------------------------------ the driver's part

    def inventory(self) -> tuple[Device, ...]:
        return tuple(Device(f"slot:{n}", f"slot {n}") for n in range(SLOTS))

    def execute(self, command: Command) -> None:
        match command:
            case Launch():
                self._launch(command)
            case Yield(trial, number, save):
                if (group := self._group(trial, number)) is not None:
                    group.go = "yield" if save or group.go == "save" else "leave"
            case Save(trial, number):
                if (group := self._group(trial, number)) is not None:
                    group.go = "save" if group.go == "continue" else "yield"
            case Kill(trial, number, grace_s):
                if (group := self._group(trial, number)) is not None:
                    group.is_killed = True
                    group.signal(signal.SIGTERM)
                    self._kills.append((self.now() + grace_s, group))
            case ConfirmRelease(devices):
                self._events.append(DevicesReleased(at=self.now(), devices=devices))
            case KeepBest(trial, step, value):
                metric = self._recipe.metric
                keep_best(self._paths, trial, step, metric=metric, value=value, atoms=None)

    def acknowledge(self, report: Reported) -> None:
        group = self._group(report.trial, report.incarnation)
        if group is not None and group.unanswered == report.seq and group.peer is not None:
            group.peer.send(Answer(report.seq, group.go))
            group.unanswered = None
            group.go = "continue" if group.go == "save" else group.go

    def poll(self, until: float) -> Sequence[Event]:
        while not self._events and self.now() < until:
            due = min((at for at, _ in self._kills), default=until)
            if self._hub.turn(min(1.0, max(0.0, min(until, due) - self.now()))):
                break
            for at, group in self._kills:
                if at <= self.now():
                    group.signal(signal.SIGKILL)
            self._kills = [entry for entry in self._kills if entry[0] > self.now()]
        events, self._events = self._events, []
        return events

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        for one in live:
            while left := of_incarnation(mark_of(self._paths.root, one.trial, one.incarnation), ()):
                kill_each(left)
        return [self._exit(one.trial, one.incarnation, "lost") for one in live]

    def close(self) -> None:
        for group in self._groups.values():
            group.signal(signal.SIGKILL)
            for rank in group.ranks:
                rank.wait()

    # ------------------------------------------------------------------ the daemon's part

    def settle_best(self) -> None: ...

    def keep_out(self, device: str, reason: str) -> None:
        """No slot is ever quarantined."""

    def readings(self) -> tuple[Reading, ...]:
        return ()

    # ------------------------------------------------------------------ trials

    def _group(self, trial: int, number: int) -> Group | None:
        group = self._groups.get(trial)
        return group if group is not None and group.number == number else None

    def _launch(self, command: Launch) -> None:
        known = self._groups.get(command.trial)
        if known is not None and known.number >= command.incarnation:
            return
        group = Group(command.trial, command.incarnation, seq=self._seq_of(command.trial))
        self._groups[command.trial] = group
        paths = self._paths.trial(command.trial)
        logs = private_folder(paths.logs(command.incarnation))
        content = {"trial": command.trial, "seed": 0, "hparams": dict(command.hparams)}
        paths.hparams.write_text(json.dumps(content))
        script = str(self._recipe.cwd / self._recipe.script)
        for rank, environment in enumerate(self._environments(command)):
            out, err = (paths.log(command.incarnation, rank, name) for name in ("out", "err"))
            environment["TORCHELASTIC_ERROR_FILE"] = str(
                paths.error_file(command.incarnation, rank)
            )
            Path(environment["TORCHELASTIC_ERROR_FILE"]).parent.mkdir(exist_ok=True)
            with out.open("wb") as stdout, err.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, "-m", "gpusched.runtime.rank", script],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment,
                    cwd=logs,
                )
            group.ranks.append(process)
            descriptor = os.pidfd_open(process.pid)
            self._hub.watch(descriptor, partial(self._rank_gone, group, descriptor))

    def _environments(self, command: Launch) -> list[dict[str, str]]:
        ranks = len(command.devices)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {
            **os.environ,
            MARK: mark_of(self._paths.root, command.trial, command.incarnation),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "GPUSCHED_DIR": str(self._paths.root),
            "GPUSCHED_TRIAL": str(command.trial),
            "GPUSCHED_INCARNATION": str(command.incarnation),
            "GPUSCHED_ATOMS": str(ranks),
            "GPUSCHED_DEVICE": "cpu",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
        }
        return [{**common, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(ranks)]

    def _take(self, hello: RankHello, peer: Peer) -> bool:
        group = self._group(hello.trial, hello.incarnation)
        if group is None:
            return False
        group.peer = peer
        peer.send(Greeting(1))
        peer.hear(from_rank, partial(self._said, group))
        self._events.append(TrialUp(at=self.now(), trial=group.trial, incarnation=group.number))
        return True

    def _said(self, group: Group, frame: Report | Saved) -> None:
        match frame:
            case Report():
                group.seq = group.unanswered = frame.seq
                metric = frame.metric(self._recipe.metric)
                self._events.append(
                    Reported(at=self.now(), trial=group.trial, report=frame, metric=metric)
                )
            case Saved(step=step, save_s=save_s):
                about = {"trial": group.trial, "incarnation": group.number}
                self._events.append(
                    CheckpointSaved(at=self.now(), step=step, save_s=save_s, **about)
                )
            case _:
                pass

    def _rank_gone(self, group: Group, descriptor: int) -> None:
        self._hub.unwatch(descriptor)
        os.close(descriptor)
        codes = {n: code for n, rank in enumerate(group.ranks) if (code := rank.poll()) is not None}
        if any(codes.values()):
            group.signal(signal.SIGKILL)
        if len(codes) < len(group.ranks):
            return
        if group.peer is not None:
            group.peer.drain()
        paths = self._paths.trial(group.trial)
        bad = {rank: code for rank, code in codes.items() if code}
        record = verdict(
            word=last_word(paths, group.number),
            asked_to_stop=group.is_killed,
            codes=codes,
            error=first_error(paths, group.number, len(codes), bad),
        )
        self._events.append(
            self._exit(
                group.trial,
                group.number,
                record.outcome,
                step=record.step,
                saved_step=record.saved_step,
                error=str(record.error) if record.error else None,
            )
        )
        del self._groups[group.trial]

    def _exit(self, trial: int, number: int, outcome: Any, **more: Any) -> TrialExited:
        return TrialExited(at=self.now(), trial=trial, incarnation=number, outcome=outcome, **more)


def make(setting: Setting) -> PlainExecutor:
    return PlainExecutor(setting)

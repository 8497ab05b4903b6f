"""Nodes that only speak: one process dials the daemon once a node, and plays the devices and the trials there.

``python -m gpusched.daemon.start FOLDER --executor scripts.simulated_nodes`` takes ``make``; SIMULATED_NODES says how
many nodes there are, of how many devices, and how often a trial reports.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from array import array
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.core.commands import ConfirmRelease, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    Reported,
    TrialExited,
    TrialUp,
)
from gpusched.devices.base import Device, Reading
from gpusched.executors.cluster.bootstrap import NodeOffer
from gpusched.executors.cluster.executor import ClusterExecutor
from gpusched.executors.cluster.line import (
    Ack,
    Beat,
    Bye,
    Do,
    Happened,
    Joined,
    Keys,
    NodeHello,
    Reconcile,
    Reconciled,
    Welcome,
    dial,
    to_node,
)
from gpusched.executors.hub import Hub, Peer
from gpusched.executors.live import Setting, Timers
from gpusched.protocol import Report

VARIABLE = "SIMULATED_NODES"


class Clocked:
    """An epoll that notes when the daemon was busy between two of its waits, and for how long, in seconds."""

    def __init__(self, epoll: Any) -> None:
        self._epoll = epoll
        self._since_s: float | None = None
        self.turns_s = array("d")

    def poll(self, *given: Any) -> Any:
        if self._since_s is not None:
            self.turns_s.extend((self._since_s, time.perf_counter() - self._since_s))
        found = self._epoll.poll(*given)
        self._since_s = time.perf_counter()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def make(setting: Setting) -> ClusterExecutor:
    clocked = setting.hub._epoll = Clocked(setting.hub._epoll)
    turns = setting.paths.root / "turns"
    atexit.register(lambda: turns.write_bytes(clocked.turns_s.tobytes()))
    return ClusterExecutor(setting, Bootstrap(setting.paths.root))


class Bootstrap:
    """All nodes are started at once, by the first call."""

    host = "127.0.0.1"

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._process: subprocess.Popen[bytes] | None = None

    def nodes(self) -> list[NodeOffer]:
        if self._process is None:
            command = [sys.executable, "-m", "scripts.simulated_nodes.executor", str(self._shared)]
            self._process = subprocess.Popen(command)
        return [
            NodeOffer(f"n{number:03}", "cpu")
            for number in range(json.loads(os.environ[VARIABLE])["nodes"])
        ]

    def interrupt(self) -> None:
        """Do nothing: no call takes long."""

    def close(self) -> None:
        if self._process is not None:
            self._process.wait(30)


class Node:
    """One node, at the other end of a line."""

    def __init__(self, name: str, hub: Hub, timers: Timers, shared: Path) -> None:
        self._name, self._hub, self._timers = name, hub, timers
        self._keys = Keys(shared)
        self._given = json.loads(os.environ[VARIABLE])
        self._running: dict[int, dict[str, Any]] = {}
        while (line := dial(self._keys)) is None:
            time.sleep(0.1)
        self.peer: Peer = hub.adopt(line)
        self.peer.hear(to_node, self._said)
        self.peer.send(NodeHello(name))
        self._devices = [
            Device(f"{name}/gpu{number}", f"{name}/gpu{number}", zlib.crc32(name.encode()))
            for number in range(self._given["devices"])
        ]

    def _said(self, frame: Any) -> None:
        match frame:
            case Welcome():
                self.peer.send(Joined(self._devices))
                self._beat()
            case Reconcile():
                self.peer.send(Reconciled())
            case Do():
                self._do(frame.read())
            case Ack(trial=trial, incarnation=incarnation):
                interval_s = self._given["interval_s"]
                self._timers.after(interval_s, partial(self._report, trial, incarnation))
            case Bye():
                self.peer.close()
            case _:
                pass

    def _beat(self) -> None:
        if not self.peer.closed:
            self.peer.send(Beat([Reading(one.id, one.label) for one in self._devices]))
            self._timers.after(1.0, self._beat)

    def _happened(self, *events: Event) -> None:
        if not self.peer.closed:
            for frame in Happened.of(events):
                self.peer.send(frame)

    def _do(self, command: Any) -> None:
        match command:
            case Launch(trial=trial, incarnation=incarnation, hparams=hparams):
                step = self._running.get(trial, {}).get("step", 0)
                known = {"incarnation": incarnation, "seq": 0, "step": step, "ask": None}
                self._running[trial] = {**known, "lr": hparams["lr"]}
                self._happened(TrialUp(at=0.0, trial=trial, incarnation=incarnation))
                first_s = random.random() * self._given["interval_s"]
                self._timers.after(first_s, partial(self._report, trial, incarnation))
            case Yield(trial=trial) | Save(trial=trial):
                self._running[trial]["ask"] = command
            case Kill(trial=trial, incarnation=incarnation):
                self._running[trial]["incarnation"] = -1
                exited = TrialExited(at=0.0, trial=trial, incarnation=incarnation, outcome="killed")
                self._happened(exited)
            case ConfirmRelease(devices=devices):
                self._happened(DevicesReleased(at=0.0, devices=devices))
            case _:
                pass

    def _report(self, trial: int, incarnation: int) -> None:
        one = self._running[trial]
        if one["incarnation"] != incarnation or self.peer.closed:
            return
        one["seq"] += 1
        one["step"] += 1
        metric = one["lr"] * (1 - math.exp(-one["step"] / 20))
        report = Report(incarnation, one["seq"], one["step"], 0.9, {"score": metric})
        told: list[Event] = [Reported(at=0.0, trial=trial, report=report, metric=metric)]
        if isinstance(one["ask"], Yield):
            step = one["step"]
            saved = {"trial": trial, "incarnation": incarnation}
            if one["ask"].save:
                told.append(CheckpointSaved(at=0.0, step=step, save_s=0.1, **saved))
            told.append(TrialExited(at=0.0, outcome="yielded", step=step, saved_step=step, **saved))
            one["incarnation"] = -1
        self._happened(*told)


def main(shared: Path) -> None:
    given = json.loads(os.environ[VARIABLE])
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder) / "socket")
        timers = Timers(time.monotonic)
        nodes = [Node(f"n{number:03}", hub, timers, shared) for number in range(given["nodes"])]
        while not all(node.peer.closed for node in nodes):
            hub.turn(min(1.0, max(0.0, timers.next_at - time.monotonic())))
            timers.run_due()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The process of one node: this machine's local executor behind the line to the daemon.

    python -m gpusched.executors.cluster.node SHARED NAME DEVICES

``SHARED`` is the experiment's folder, which all nodes share. What must be on this machine's own disk lies in a folder
of the node (``line.home_of``): socket, epoch, logs; the folder of trials and ``worker.json``
are links to the shared ones there, so that a trial finds all in ``GPUSCHED_DIR``. Devices are called ``node/device`` on
the line, by their own names in the executor.

A lost line is to a node what the daemon's death is on one machine: the executor is closed, trials go on, the newest
daemon is dialled (``cluster.json``), and another executor adopts what is left.
"""

from __future__ import annotations

import shutil
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gpusched.core.commands import ConfirmRelease, Launch
from gpusched.core.events import DevicesReleased, Event, QuarantineChanged, Reported
from gpusched.devices.base import Device
from gpusched.errors import GpuschedError, InputError
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
    home_of,
    is_over,
    to_node,
)
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting
from gpusched.executors.local.executor import TorchrunExecutor
from gpusched.executors.local.launching import devices_of
from gpusched.folder import files
from gpusched.folder.lock import Epoch, Lock
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.claim import Hunt, incarnations_left
from gpusched.protocol import Remark, Report
from gpusched.recipe.recipe import Recipe

BEAT_S = 1.0
PAUSE_S, CANNOT_PAUSE_S = 0.5, 5.0
"""From the end of a line to the next dialling; the same for a node that could run no trial."""
LEAVE_AFTER_S = 60.0
"""Time without any daemon after which a node's process ends, if no trial is left: trials leave some time before."""
LEAVING_S = 10.0
"""Time for shims to leave that have told of the end of their trials: they sync that to disk meanwhile."""
HUNT_S = 10.0
BACKLOG_BYTES = 1 << 30
"""Reports that a daemon has missed, while it reads them; more would end the line, and all of its trials with it."""
LINKS = ("trials", "worker.json")


class NodeProcess:
    """Node of a search: the machine of this process. ``devices``: those that it may use, as a recipe names them."""

    def __init__(self, shared: Path, name: str, devices: str) -> None:
        self.shared = ExperimentPaths(shared)
        self.name = name
        self.devices = devices
        self.keys = Keys(shared)
        self.paths = ExperimentPaths(home_of(shared, name))
        self.is_over = False
        #: Whether the last line ended as no trial could run here: the next one waits for the warm server.
        self.is_in_doubt = False
        self._lock: Lock | None = None

    def run(self) -> None:
        """Serve one daemon after the other, until one says that the search is over."""
        while self._lock is None:
            try:
                self._lock = Lock.take(self.paths.lock)
            except InputError:  # the process before this one has not ended yet
                if is_over(self.keys):
                    return
                time.sleep(PAUSE_S)
        for link in LINKS:
            with suppress(FileExistsError):
                (self.paths.root / link).symlink_to(self.shared.root / link)
        heard_s = time.monotonic()
        while not self.is_over:
            if time.monotonic() - heard_s > LEAVE_AFTER_S and not incarnations_left(
                self.paths.root
            ):
                return
            pause_s, line = PAUSE_S, dial(self.keys)
            if line is not None:
                why_not = Session(self, line).run()
                heard_s = time.monotonic()
                self.is_in_doubt = bool(why_not)
                if why_not:
                    print(*why_not.split(), flush=True)
                    pause_s = CANNOT_PAUSE_S
            if not self.is_over:
                time.sleep(pause_s)
                self.is_over = is_over(self.keys)
        self._remove_home()

    def end_trials(self, but: Collection[tuple[int, int]] = ()) -> None:
        """Kill all incarnations but these; what cannot be killed keeps its devices from being proven clean."""
        for trial, incarnation in incarnations_left(self.paths.root) - {*but}:
            left = Hunt(self.paths, trial, incarnation).end(HUNT_S)
            told = f"{left} cannot be killed" if left else "what was left is ended"
            print(f"trial {trial}, launch {incarnation}: {told}", flush=True)

    def _remove_home(self) -> None:
        """Remove the node's folder, once the last shims, which have told of their ends, have left; trials keep it."""
        until_s = time.monotonic() + LEAVING_S
        while (left := incarnations_left(self.paths.root)) and time.monotonic() < until_s:
            time.sleep(PAUSE_S / 5)
        if not left:
            shutil.rmtree(self.paths.root, ignore_errors=True)

    def recipe_here(self, resolved: dict[str, Any]) -> Recipe:
        """Return the recipe with the devices of this node. Raises InputError where its script is not there."""
        recipe = Recipe.from_resolved(resolved)
        if not (script := recipe.cwd / recipe.script).is_file():
            raise InputError(
                f"{script} is not there: put the script into a folder that all nodes share"
            )
        return replace(recipe, devices=self.devices)


class Session:
    """The life of one line: a local executor from the welcome on, closed when the line is."""

    def __init__(self, node: NodeProcess, line: Any) -> None:
        self._node = node
        self._began_s = time.monotonic()
        self._hub = Hub(node.paths.socket)
        self._peer = self._hub.greet(line)
        self._peer.backlog_bytes = BACKLOG_BYTES
        self._peer.hear(to_node, self._said)
        self._executor: TorchrunExecutor | None = None
        self._seqs: dict[int, int] = {}
        self._beat_s = 0.0
        #: Devices that the daemon is not told of yet.
        self._untold: list[Device] = []

    def now(self) -> float:
        """Return the seconds since the line was made; the daemon stamps events with its own clock."""
        return time.monotonic() - self._began_s

    def run(self) -> str:
        """Serve until the line is lost; return why this node can run no trial, empty where it can."""
        self._peer.send(NodeHello(self._node.name))
        try:
            while not self._peer.closed:
                self._turn()
        except GpuschedError as error:
            return str(error)
        finally:
            if self._executor is not None:
                self._executor.close()
            self._hub.close()
        return ""

    def _turn(self) -> None:
        if self._executor is None:
            self._hub.turn(BEAT_S)
            return
        if self._untold and (self._executor.server.ready_at or not self._node.is_in_doubt):
            self._peer.send(Joined(self._untold))
            self._untold = []
        events = self._executor.poll(self._beat_s + BEAT_S)
        self._tell(events)
        if self.now() >= self._beat_s + BEAT_S:
            self._beat_s = self.now()
            shown = [
                replace(one, device=self._shown(one.device)) for one in self._executor.readings()
            ]
            if not self._untold:
                self._peer.send(Beat(shown))

    def _shown(self, device: str) -> str:
        """Return the cluster's name of a device of this node."""
        return f"{self._node.name}/{device}"

    def _own(self, devices: Iterable[str]) -> tuple[str, ...]:
        """Return those of these devices that are this node's, by the executor's names."""
        names = (device.partition("/") for device in devices)
        return tuple(name for node, _, name in names if node == self._node.name)

    # ------------------------------------------------------------------ what the daemon says

    def _said(self, frame: Any) -> None:
        if isinstance(frame, Welcome):
            self._open(frame)
        elif isinstance(frame, Bye):
            self._node.is_over = True
            if frame.ends_trials:
                self._node.end_trials()
            self._peer.close()
        elif self._executor is not None:
            self._obey(self._executor, frame)

    def _obey(self, executor: TorchrunExecutor, frame: Any) -> None:
        match frame:
            case Reconcile():
                self._reconcile(executor, frame)
            case Do():
                command = frame.read()
                if isinstance(command, Launch | ConfirmRelease):
                    command = msgspec.structs.replace(command, devices=self._own(command.devices))
                if isinstance(command, Launch):
                    self._seqs[command.trial] = frame.seq
                executor.execute(command)
            case Ack(trial=trial, incarnation=incarnation, seq=seq):
                report = Report(incarnation, seq, 0)
                executor.acknowledge(Reported(at=0.0, trial=trial, report=report, metric=None))
            case _:
                pass

    def _open(self, welcome: Welcome) -> None:
        """Make the executor and open the devices."""
        node = self._node
        recipe = node.recipe_here(welcome.recipe)
        setting = Setting(
            paths=node.paths,
            recipe=recipe,
            hub=self._hub,
            clock=self.now,
            epoch=Epoch(node.paths.root, 0).number,
            say=lambda text: self._peer.send(Remark(text)),
            refused=partial(self._peer.send, Remark("", full=True)),
            seq_of=lambda trial: self._seqs.get(trial, 0),
            node=node.name,
        )
        is_left = bool(incarnations_left(node.paths.root))
        devices = devices_of(recipe, node.paths.root, (), takes_over=is_left)
        self._executor = TorchrunExecutor(setting, devices)
        island = zlib.crc32(node.name.encode())  # the same whatever nodes there were before
        self._untold = [
            replace(
                device, id=self._shown(device.id), label=self._shown(device.label), island=island
            )
            for device in self._executor.inventory()
        ]

    def _reconcile(self, executor: TorchrunExecutor, frame: Reconcile) -> None:
        """End what should not be here, find out about what should, and have devices proven clean."""
        self._node.end_trials(but={(one.trial, one.incarnation) for one in frame.live})
        for one in frame.live:
            self._seqs[one.trial] = one.last_seq
        own = [replace(one, devices=self._own(one.devices)) for one in frame.live]
        events = executor.reconcile(own)
        for device, reason in frame.kept_out.items():
            executor.keep_out(self._own([device])[0], reason)
        self._tell(events)
        self._peer.send(Reconciled())

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case DevicesReleased():
                    event.devices = tuple(map(self._shown, event.devices))
                case QuarantineChanged():
                    event.device = self._shown(event.device)
                case Reported():
                    self._seqs[event.trial] = event.seq
                case _:
                    pass
            self._peer.send(Happened.of(event))


def main(shared: str, name: str, devices: str) -> None:
    files.be_private()
    NodeProcess(Path(shared), name, devices).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

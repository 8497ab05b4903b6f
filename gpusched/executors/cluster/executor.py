"""The cluster's executor: a local executor on each node, behind one line each; commands are routed by device.

    command ──▶ the node that its devices name ──line──▶ the node's local executor (``node.py``)
    events  ◀── restamped with this daemon's clock ◀── the same line

Rules:

* A trial is on one node. Its devices are called ``node/device``, and a node is an island.
* A line that is lost changes nothing for ``LOST_AFTER_S``: the node dials again, and finds out what became of its
  trials, as after the death of a daemon. A node that is silent for longer is given up: a fence is raised for each of
  its trials, so that no process of theirs writes any more (``folder/lock.py``), its devices are quarantined, and its
  trials are lost.
* A node that comes back after that ends what it finds of them, and has its devices proven clean, before any is used.
* Bootstraps may take seconds, so they are called in a thread of their own.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor as Helper
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gpusched
from gpusched.core.decisions import Command, ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DeviceQuarantined,
    DevicesJoined,
    Event,
    Reported,
    TrialExited,
)
from gpusched.devices.base import Device, Reading
from gpusched.errors import DeviceError
from gpusched.executors.base import LiveTrial, Setting
from gpusched.executors.best import BestKeeper
from gpusched.executors.cluster import frames
from gpusched.executors.cluster.bootstrap import Bootstrap, NodeOffer, bootstrap_for
from gpusched.executors.cluster.line import Keys, Line, Listener, interface_towards, say_over
from gpusched.executors.cluster.nodes import Node, node_of, on_node
from gpusched.executors.hub import Timers
from gpusched.executors.peer import Peer
from gpusched.folder.files import private_folder
from gpusched.folder.lock import write_fence
from gpusched.folder.reports import reports_after

BEAT_S = 1.0
LOST_AFTER_S = float(os.environ.get("GPUSCHED_NODE_LOST_S", "3"))
"""Silence after which a node is given up; ``GPUSCHED_NODE_LOST_S`` overrides it."""
JOIN_LIMIT_S = 60.0
"""Time that nodes have to join at the beginning, and one that said hello to open its devices."""
RETURN_LIMIT_S = 15.0
"""Time that nodes have to come back to a daemon that takes over."""
LOOK_EVERY_S = 5.0
"""Time between two questions to the bootstrap: which nodes are there now?"""
HELLO_LIMIT_S = 10.0
STRANGERS_MAX = 64


class ClusterExecutor:
    """See ``LiveExecutor``. ``bootstrap``: the way to the nodes, called by ``helper``; closed with the executor."""

    def __init__(
        self,
        setting: Setting,
        bootstrap: Bootstrap,
        lost_after_s: float = LOST_AFTER_S,
        look_every_s: float = LOOK_EVERY_S,
        helper: Helper | None = None,
    ) -> None:
        self._lost_after_s = lost_after_s
        self._look_every_s = look_every_s
        self._setting = setting
        self._paths = setting.paths
        self._hub = setting.hub
        self._bootstrap = bootstrap
        self.now = setting.clock
        self._timers = timers = Timers(setting.clock)
        self._events: list[Event] = []
        self._nodes: dict[str, Node] = {}
        self._listed: tuple[Device, ...] | None = None
        #: Devices that the search knows.
        self._known: set[str] = set(setting.devices)
        #: Whether the search has said which trials should live; until then no node is told.
        self._may_reconcile = not setting.devices
        #: Of each trial, the newest incarnation that was launched.
        self._launched: dict[int, int] = {}
        self._strangers: set[Peer] = set()
        self._offers: dict[str, NodeOffer] = {}
        self._complaints: set[str] = set()
        self._best = BestKeeper(setting, timers.after, self._atoms_of)
        self._helper = helper or ThreadPoolExecutor(1, "gpusched-bootstrap")
        self._answers: deque[Callable[[], None]] = deque()
        self._keys = Keys(setting.paths.root)
        self._listener: Listener | None = None
        self._looked_at = 0.0

    # ------------------------------------------------------------------ the nodes

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are known, lost ones among them."""
        return list(self._nodes.values())

    def inventory(self) -> tuple[Device, ...]:
        if self._listed is None:
            self._open()
            self._listed = tuple(device for node in self._nodes.values() for device in node.devices)
            self._known |= {device.id for device in self._listed if not self._setting.devices}
        return self._listed

    def _open(self) -> None:
        """Start the nodes and wait for them. Raises DeviceError where none joins."""
        self._keys.make()
        self._offers = offers = {offer.name: offer for offer in self._bootstrap.nodes()}
        if not offers:
            raise DeviceError("the cluster has no node that could be used")
        host = interface_towards(next(iter(offers.values())).address)
        self._listener = Listener(self._keys, host, self._setting.epoch, self._hub, self.greet)
        self._hub.watch(self._listener.fileno(), self._listener.accept)
        self._looked_at = self.now()
        for name in {node_of(device): None for device in self._setting.devices}:
            self._node(name)
        for name in offers:
            self._node(name)
            self._start(name)
        limit_s = RETURN_LIMIT_S if self._setting.devices else JOIN_LIMIT_S
        wanted = [self._nodes[name] for name in offers]
        joined = "joining" if self._setting.devices else "up"
        self._wait(
            limit_s,
            lambda: all((node.devices and node.state == joined) or node.why_not for node in wanted),
        )
        self._timers.after(BEAT_S, self._beat)
        self._timers.after(self._look_every_s, self._look)
        late = f"it has not joined within {limit_s:.0f} s; its log is in {self._keys.folder}"
        for node in wanted:
            if not node.devices:
                self._setting.say(f"node {node.name} is not used: {node.why_not or late}")
        if not any(node.devices for node in wanted) and not self._setting.devices:
            reasons = sorted({node.why_not or late for node in wanted})
            raise DeviceError(f"no node of the cluster can be used: {'; '.join(reasons)}")

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            # An island's number is the same for every daemon, whatever nodes there were before.
            self._nodes[name] = Node(name, zlib.crc32(name.encode()), heard_at=self.now())
        return self._nodes[name]

    def _start(self, name: str) -> None:
        """Have a node's process started; where there is one already, the new one ends itself."""
        offer = self._offers.get(name)
        if offer is None:
            return  # a person started it
        words = [sys.executable, "-m", "gpusched.executors.cluster.node", str(self._paths.root)]
        words += ["--name", name, "--devices", offer.devices]
        environment = {"PYTHONPATH": str(Path(gpusched.__file__).parent.parent)}
        self._aside(partial(self._bootstrap.start, name, words, environment), lambda _nothing: None)

    def _look(self) -> None:
        """Ask which nodes there are, and have those started that have no line: they are new, or they are back."""
        self._aside(self._bootstrap.nodes, self._offered)
        self._timers.after(self._look_every_s, self._look)

    def _offered(self, offers: list[NodeOffer]) -> None:
        self._offers = {offer.name: offer for offer in offers}
        for name in self._offers:
            if self._node(name).peer is None:
                self._start(name)

    def _aside(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Call the bootstrap in its thread, and ``then`` with the result in this one."""

        def done(future: Future[Any]) -> None:
            if not future.cancelled():
                self._answers.append(partial(self._answered_aside, future, then))
                self._hub.wake()

        self._helper.submit(call).add_done_callback(done)

    def _answered_aside(self, future: Future[Any], then: Callable[[Any], None]) -> None:
        problem = future.exception()
        if problem is None:
            then(future.result())
        elif str(problem) not in self._complaints:
            self._complaints.add(str(problem))
            self._setting.say(f"the cluster: {problem}")

    # ------------------------------------------------------------------ the seam

    def execute(self, command: Command) -> None:
        match command:
            case Launch():
                self._launch(command)
            case Yield() | Save() | Kill():
                node = self._home(command.trial, command.incarnation)
                if node is not None:
                    node.ask(command)
            case ConfirmRelease(devices):
                for name in {node_of(device): None for device in devices}:
                    node = self._nodes[name]
                    if node.state != "lost":
                        node.release(device for device in devices if node_of(device) == name)
            case KeepBest():
                self._best.keep(command)
            case _:
                pass  # timers, forecasts and the end are the driver's and the daemon's

    def expect(self, trial: int, launch: Launch | None, interval_s: float) -> None:
        """Pass on the next launch of a trial if it is on the same node: a state in memory does not leave its node."""
        node = next((node for node in self._nodes.values() if trial in node.trials), None)
        if node is None:
            return
        if launch is not None and node_of(launch.devices[0]) != node.name:
            launch = None
        node.send(
            frames.Expect(trial, None if launch is None else node.own_names(launch), interval_s)
        )

    def acknowledge(self, report: Reported) -> None:
        node = self._home(report.trial, report.incarnation)
        if node is not None:
            node.send(frames.Ack(report.trial, report.incarnation, report.seq))

    def poll(self, until: float) -> Sequence[Event]:
        """Also returns when somebody rang at the hub."""
        self._timers.run_due()
        while not self._events:
            rung = self._turn(until)
            if rung or self.now() >= until:
                break
        return self._told()

    def _turn(self, until: float) -> bool:
        next_at = min(until, self._timers.next_at)
        rung = self._hub.turn(min(max(0.0, next_at - self.now()), 3600.0))
        self._timers.run_due()
        while self._answers:
            self._answers.popleft()()
        return rung

    def _wait(self, limit_s: float, is_over: Callable[[], bool]) -> None:
        until = self.now() + limit_s
        while not is_over() and self.now() < until:
            self._turn(until)

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """Tell each node which trials should live there, and wait for its answer; without an answer they are lost."""
        self._may_reconcile = True
        asked = []
        for node in self._nodes.values():
            node.trials = on_node(live, node.name)
            if node.state == "joining" and node.devices:
                self._reconcile(node)
                asked.append(node)
            else:
                node.state = "away"
        self._wait(JOIN_LIMIT_S, lambda: all(node.state != "joining" for node in asked))
        for node in self._nodes.values():
            if node.state != "up":
                self._lose(node, "it has not come back to the daemon that took over")
        return self._told()

    def close(self) -> None:
        """Let go: the nodes' processes end, trials live on as long as without a daemon, and machines are given back."""
        for node in self._nodes.values():
            if node.peer is not None:
                node.peer.on_end = None
                node.peer.send(frames.Bye())
                node.peer.close()
        for stranger in list(self._strangers):
            stranger.close()
        self.stop_listening()
        say_over(self._keys)
        self._helper.shutdown(wait=True, cancel_futures=True)
        self._bootstrap.close()

    def stop_listening(self) -> None:
        """Take no further connection."""
        if self._listener is not None:
            self._hub.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None

    # ------------------------------------------------------------------ for the daemon

    def keep_out(self, device: str, reason: str) -> None:
        self._node(node_of(device)).kept_out[device] = reason

    def readmit(self, device: str, answered: Callable[[str], None]) -> None:
        node = self._nodes.get(node_of(device))
        if node is None or node.state != "up":
            answered(f"node {node_of(device)} is not there")
            return
        node.answers.setdefault(device, []).append(answered)
        node.send(frames.Readmit(device.partition("/")[2]))

    def let_go(self, device: str) -> None:
        node = self._nodes.get(node_of(device))
        if node is None or node.state != "up":
            raise DeviceError(f"{device}: its node is not there")
        if any(device in map(node.ours, one.live.devices) for one in node.trials.values()):
            raise DeviceError(f"{device}: a trial has it")
        node.send(frames.LetGo(device.partition("/")[2]))

    def readings(self) -> Sequence[Reading]:
        return [
            replace(one, device=node.ours(one.device), label=node.ours(one.label))
            for node in self._nodes.values()
            for one in node.readings
        ]

    # ------------------------------------------------------------------ trials

    def _launch(self, command: Launch) -> None:
        node = self._nodes[node_of(command.devices[0])]
        known = node.trials.get(command.trial)
        if known is not None and known.live.incarnation >= command.incarnation:
            return
        if command.incarnation <= self._launched.get(command.trial, 0):
            return
        self._launched[command.trial] = command.incarnation
        if node.state == "lost":
            self._events.append(_exit(self.now(), command.trial, command.incarnation, node, True))
            return
        self._lay_fence(command.trial, 0)
        node.launch(command, self._setting.seq_of(command.trial))

    def _lay_fence(self, trial: int, incarnation: int) -> None:
        """Keep this incarnation, and older ones, from writing; 0: none yet (``folder/lock.py``)."""
        paths = self._paths.trial(trial)
        try:
            private_folder(paths.root)
            write_fence(paths.fence, incarnation)
        except OSError as error:
            self._setting.say(f"{paths.fence}: cannot be written ({error})")

    def _home(self, trial: int, incarnation: int) -> Node | None:
        """Return the node on which this incarnation is."""
        for node in self._nodes.values():
            found = node.trials.get(trial)
            if found is not None and found.live.incarnation == incarnation:
                return node
        return None

    def _atoms_of(self, trial: int) -> int | None:
        found = [node.trials[trial] for node in self._nodes.values() if trial in node.trials]
        return len(found[0].live.devices) if found else None

    # ------------------------------------------------------------------ lines

    def greet(self, line: Line) -> None:
        """Take a connection: its handshake, and its hello, have to come soon."""
        if len(self._strangers) >= STRANGERS_MAX:
            line.close()
            return
        peer = self._hub.adopt(line)
        self._strangers.add(peer)
        peer.hear(frames.from_stranger, partial(self._hello, peer))
        peer.on_end = partial(self._strangers.discard, peer)
        self._timers.after(HELLO_LIMIT_S, partial(self._drop_stranger, peer))

    def _drop_stranger(self, peer: Peer) -> None:
        if peer in self._strangers:
            peer.close()

    def _hello(self, peer: Peer, hello: frames.NodeHello) -> None:
        self._strangers.discard(peer)
        node = self._node(hello.node)
        if node.peer is not None and node.process != hello.process:
            self._refuse(peer, node.name)
            return
        if node.peer is not None:
            node.peer.on_end = None
            node.peer.close()
        node.peer, node.process = peer, hello.process
        node.state, node.heard_at = "joining", self.now()
        node.devices, node.why_not = (), ""
        peer.hear(frames.from_node, partial(self._said, node))
        peer.on_end = partial(self._hung_up, node)
        peer.send(frames.Welcome(self._setting.recipe.resolved()))

    def _refuse(self, peer: Peer, name: str) -> None:
        """Turn away a second machine of the same name, or the two would push each other out for ever."""
        why = f"another machine is node {name} already; give this one a name of its own: --name"
        peer.send(frames.Cannot(why))
        peer.close()
        if why not in self._complaints:
            self._complaints.add(why)
            self._setting.say(f"a second machine that calls itself node {name} was refused")

    def _said(self, node: Node, frame: Any) -> None:
        node.heard_at = self.now()
        match frame:
            case frames.Happened():
                if node.state == "lost":
                    return
                self._events += node.take(frame, self.now())
            case frames.Beat(readings=readings):
                node.readings = tuple(readings)
            case frames.Joined():
                self._joined(node, frame)
            case frames.Reconciled():
                self._reconciled(node)
            case frames.Said(text=text):
                self._setting.say(f"node {node.name}: {text}")
            case frames.Answered(device=device, why=why):
                for answered in node.answers.pop(node.ours(device), []):
                    answered(why)
            case _:
                assert isinstance(frame, frames.Cannot)
                node.why_not = why = frame.why
                if node.peer is not None:
                    node.peer.close()
                self._lose(node, why)

    def _joined(self, node: Node, frame: frames.Joined) -> None:
        if why := self._unshared(node, frame.proof):
            self._said(node, frames.Cannot(why))
            return
        node.devices = tuple(
            replace(
                device,
                id=node.ours(device.id),
                label=node.ours(device.label),
                island=node.island,
            )
            for device in frame.devices
        )
        there = {device.id: device for device in node.devices}
        for name in self._devices_of(node.name):
            why = "it was not there any more when its node came back"
            if (device := there.get(name)) is not None:
                why = device.why_not
            if why and name not in node.kept_out:
                self._events.append(
                    DeviceQuarantined(
                        at=self.now(), device=name, reason=why, passing=device is not None
                    )
                )
        if self._may_reconcile:
            self._reconcile(node)

    def _unshared(self, node: Node, proof: str) -> str:
        """Say why the folder is not the same here and there; nothing where it is."""
        path = self._keys.proof(node.name)
        try:
            found = path.read_text()
        except OSError as error:
            found = str(error)
        if found == proof:
            return ""
        return (
            f"{self._paths.root} is another folder there: the file {path.name} that the node wrote is not here. Use "
            f"--dir with a folder that all nodes share"
        )

    def _reconcile(self, node: Node) -> None:
        assert node.peer is not None
        node.peer.send(node.reconcile())

    def _reconciled(self, node: Node) -> None:
        node.state = "up"
        new = [device for device in node.devices if device.id not in self._known]
        if new and self._listed is not None:
            self._take_up(new)
        for frame in node.outstanding():
            node.send(frame)

    def _take_up(self, new: Sequence[Device]) -> None:
        """Have the search use devices of a node that has joined it."""
        now, names = self.now(), tuple(device.id for device in new)
        self._known.update(names)
        islands = {device.id: device.island for device in new}
        self._events.append(DevicesJoined(at=now, devices=names, islands=islands))
        for device in new:
            if not device.usable:
                self._events.append(
                    DeviceQuarantined(at=now, device=device.id, reason=device.why_not, passing=True)
                )

    def _hung_up(self, node: Node) -> None:
        """The line is gone: the node will dial again, or its process has died and another is started."""
        node.peer = None
        if node.state != "lost":
            node.state = "away"
            self._start(node.name)

    # ------------------------------------------------------------------ silence

    def _beat(self) -> None:
        """Give a sign of life to every node, and give up those that give none."""
        now = self.now()
        if now - self._looked_at > BEAT_S + self._lost_after_s / 2:
            for node in self._nodes.values():  # this daemon was suspended: no node was heard
                node.heard_at = max(node.heard_at, now - BEAT_S)
        self._looked_at = now
        for node in self._nodes.values():
            if node.peer is not None:
                node.peer.send(frames.Beat())
            limit_s = JOIN_LIMIT_S if node.state == "joining" else self._lost_after_s
            if node.state != "lost" and now - node.heard_at > limit_s:
                self._lose(node, f"no sign of life for {now - node.heard_at:.1f} s")
        self._timers.after(BEAT_S, self._beat)

    def _lose(self, node: Node, why: str) -> None:
        """Give a node up: nothing that is left there may write, its devices are out of use, and its trials are lost."""
        if node.state == "lost":
            return
        node.state = "lost"
        if self._listed is not None:
            self._setting.say(f"node {node.name} is given up: {why}")
        trials, node.trials = list(node.trials.values()), {}
        for trial in trials:
            self._lay_fence(trial.live.trial, trial.live.incarnation)
        node.releasing.clear()
        now, reason = self.now(), f"node {node.name} was lost: {why}"
        for device in self._devices_of(node.name):
            node.kept_out.setdefault(device, reason)
            self._events.append(
                DeviceQuarantined(at=now, device=device, reason=reason, passing=True)
            )
        for trial in trials:
            self._events += self._last_words(trial.live)
            self._events.append(_exit(now, trial.live.trial, trial.live.incarnation, node, False))
        if node.peer is not None:
            node.peer.on_end = None
            node.peer.close()
            node.peer = None

    def _devices_of(self, name: str) -> list[str]:
        """Return the devices of a node that the search knows."""
        return sorted(device for device in self._known if node_of(device) == name)

    def _last_words(self, live: LiveTrial) -> Iterator[Event]:
        """Yield what the files of an incarnation say and its node has not: reports, and a newer checkpoint."""
        paths, now = self._paths.trial(live.trial), self.now()
        for report in reports_after(paths.reports, live.last_seq):
            with suppress(KeyError):
                metric = report.metric(self._setting.recipe.metric)
                if report.incarnation == live.incarnation:
                    yield Reported(at=now, trial=live.trial, report=report, metric=metric)
        step = paths.newest_checkpoint()
        if step > live.saved_step:
            yield CheckpointSaved(
                at=now, trial=live.trial, incarnation=live.incarnation, step=step, save_s=0.0
            )


def _exit(now: float, trial: int, incarnation: int, node: Node, unbegun: bool) -> TrialExited:
    return TrialExited(
        at=now,
        trial=trial,
        incarnation=incarnation,
        outcome="lost",
        error=f"node {node.name} was lost",
        unbegun=unbegun,
    )


def make(setting: Setting) -> ClusterExecutor:
    """The cluster's executor, at the address that the recipe names. Raises GpuschedError."""
    recipe = setting.recipe
    assert recipe.cluster is not None
    bootstrap = bootstrap_for(recipe.cluster, setting.paths.root, insecure=recipe.insecure_cluster)
    return ClusterExecutor(setting, bootstrap)

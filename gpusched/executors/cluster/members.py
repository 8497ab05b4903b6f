"""The nodes of a search: how they are started, join, fall silent, and come back.

* A line that is lost changes nothing for ``LOST_AFTER_S``: the node dials again, and finds out what became of its
  trials, as after the death of a daemon. A node that is silent for longer is given up: its devices are quarantined.
* A node that comes back after that ends what it finds of trials that are not its own any more, and has its devices
  proven clean, before any is used.
* The bootstrap may take seconds, so it is called in a thread of its own.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Helper
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gpusched
from gpusched.core.events import DeviceQuarantined, DevicesJoined, Event
from gpusched.devices.base import Device
from gpusched.errors import DeviceError
from gpusched.executors.base import Setting, Timers
from gpusched.executors.cluster import frames
from gpusched.executors.cluster.bootstrap import Bootstrap, NodeOffer
from gpusched.executors.cluster.line import Keys, Listener, interface_towards, say_over
from gpusched.executors.cluster.nodes import JoinedNode, node_of
from gpusched.executors.hub import Peer

BEAT_S = 1.0
LOST_AFTER_S = float(os.environ.get("GPUSCHED_NODE_LOST_S", "3"))
"""Silence after which a node is given up; ``GPUSCHED_NODE_LOST_S`` overrides it."""
SLOW_S, SLOW_STEPS = 0.5, 4
"""A folder that takes longer over one operation is slow: a node may be silent for as many of them more."""
JOIN_LIMIT_S = 60.0
"""Time that nodes have to join at the beginning, and one that said hello to open its devices."""
RETURN_LIMIT_S = 15.0
"""Time that nodes have to come back to a daemon that takes over."""
LOOK_EVERY_S = 5.0
"""Time between two questions to the bootstrap: which nodes are there now?"""

Wait = Callable[[float, Callable[[], bool]], None]


class Members:
    """Nodes by name, lost ones among them. ``emit`` takes events about devices.

    ``heard`` gets what a node says about trials and devices; ``lost`` a node given up.
    """

    def __init__(
        self,
        setting: Setting,
        bootstrap: Bootstrap,
        timers: Timers,
        *,
        emit: Callable[[Event], None],
        heard: Callable[[JoinedNode, Any], None],
        lost: Callable[[JoinedNode], None],
        lost_after_s: float,
        look_every_s: float,
        helper: Helper | None,
    ) -> None:
        self.nodes: dict[str, JoinedNode] = {}
        self._setting = setting
        self._root = setting.paths.root
        self._keys = Keys(self._root)
        self._bootstrap = bootstrap
        self._timers = timers
        self._now = timers.now
        self._emit, self._heard, self._lost = emit, heard, lost
        self._lost_after_s, self._look_every_s = lost_after_s, look_every_s
        #: Devices that the search knows; those of nodes that join after ``open`` are new.
        self._known: set[str] = set(setting.devices)
        self._is_open = False
        #: Whether the search has said which trials should live; until then no node is told.
        self._may_reconcile = not setting.devices
        self._offers: dict[str, NodeOffer] = {}
        self._complaints: set[str] = set()
        self._helper = helper or ThreadPoolExecutor(1, "gpusched-bootstrap")
        #: Calls of the bootstrap, in order, and takers of their results.
        self._calls: deque[tuple[Future[Any], Callable[[Any], None], Callable[[str], None]]] = (
            deque()
        )
        self._listener: Listener | None = None
        self._beat_at = 0.0

    def open(self, wait: Wait) -> tuple[Device, ...]:
        """Start the nodes and wait for them; return their devices. Raises DeviceError where none joins."""
        self._keys.make()
        self._offers = offers = {offer.name: offer for offer in self._bootstrap.nodes()}
        if not offers:
            raise DeviceError("the cluster has no node that could be used")
        self._setting.hub.register(frames.NodeHello, self._hello)
        host = interface_towards([offer.address for offer in offers.values()])
        self._listener = Listener(self._keys, host, self._setting.hub, frames.from_stranger)
        self._take_results()
        for device in self._setting.devices:
            self.node(node_of(device))
        for name in offers:
            self.node(name)
            self._start(name)
        takes_over = bool(self._setting.devices)
        limit_s = RETURN_LIMIT_S if takes_over else JOIN_LIMIT_S
        wanted = list(self.nodes.values())
        joined = "joining" if takes_over else "up"
        self._timers.after(self._look_every_s, self._look)
        wait(
            limit_s,
            lambda: all((node.devices and node.state == joined) or node.why_not for node in wanted),
        )
        self._beat_at = self._now()
        self._timers.after(BEAT_S, self._beat)
        late = f"it has not joined within {limit_s:.0f} s; its log is in {self._keys.folder}"
        unused = {node.name: node.why_not or late for node in wanted if not node.devices}
        for name, why in unused.items():
            self._setting.say(f"node {name} is not used: {why}")
        if len(unused) == len(wanted) and not takes_over:
            reasons = "; ".join(sorted(set(unused.values())))
            raise DeviceError(f"no node of the cluster can be used: {reasons}")
        devices = tuple(device for node in self.nodes.values() for device in node.devices)
        if not takes_over:
            self._known.update(device.id for device in devices)
        self._is_open = True
        return devices

    def node(self, name: str) -> JoinedNode:
        """Return the node of this name; one that is not known yet becomes so."""
        if name not in self.nodes:
            self.nodes[name] = JoinedNode(name, heard_at=self._now())
        return self.nodes[name]

    def up(self, device: str) -> JoinedNode | None:
        """Return the node of a device if it can take commands."""
        node = self.nodes.get(node_of(device))
        return node if node is not None and node.state == "up" else None

    def reconcile(self, wait: Wait) -> None:
        """Tell each node which trials should live there, and wait for its answer; without an answer it is lost."""
        self._may_reconcile = True
        asked = []
        for node in self.nodes.values():
            if node.state == "joining" and node.devices:
                self._reconcile(node)
                asked.append(node)
            else:
                node.state = "away"
        wait(JOIN_LIMIT_S, lambda: all(node.state != "joining" for node in asked))
        for node in self.nodes.values():
            if node.state != "up":
                self._lose(node, "it has not come back to the daemon that took over")

    def stop_listening(self) -> None:
        """Take no further connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Have the nodes' processes end, and give the machines back."""
        for node in self.nodes.values():
            if node.peer is not None:
                node.peer.send(frames.Bye())
            node.hang_up()
        self.stop_listening()
        say_over(self._keys)
        self._helper.shutdown(wait=False, cancel_futures=True)
        if not all(called.done() for called, *_ in self._calls):
            self._bootstrap.interrupt()
        self._helper.shutdown(wait=True)
        self._bootstrap.close()

    # ------------------------------------------------------------------ the bootstrap

    def _start(self, name: str) -> None:
        """Have a node's process started; where there is one already, the new one ends itself."""
        offer = self._offers.get(name)
        if offer is None:
            return  # a person started it
        words = [sys.executable, "-m", "gpusched", "node", "--join", str(self._root)]
        words += ["--name", name, "--devices", offer.devices]
        environment = {"PYTHONPATH": str(Path(gpusched.__file__).parent.parent)}
        start = partial(self._bootstrap.start, name, words, environment)
        self._call(start, lambda _nothing: None, partial(self._not_started, self.node(name)))

    def _not_started(self, node: JoinedNode, why: str) -> None:
        self.complain(f"node {node.name} cannot be started: {why}")
        if node.peer is None:
            node.why_not = why

    def _look(self) -> None:
        """Ask which nodes there are, and have those started that have no line: they are new, or they are back."""
        if not self._calls:  # a node that is down may keep each call waiting for longer than the time between two looks
            self._call(
                self._bootstrap.nodes,
                self._offered,
                lambda why: self.complain(f"the cluster: {why}"),
            )
        self._timers.after(self._look_every_s, self._look)

    def _offered(self, offers: list[NodeOffer]) -> None:
        self._offers = {offer.name: offer for offer in offers}
        for name in self._offers:
            if self.node(name).peer is None:
                self._start(name)

    def _call(
        self, call: Callable[[], Any], then: Callable[[Any], None], fail: Callable[[str], None]
    ) -> None:
        self._calls.append((self._helper.submit(call), then, fail))

    def _take_results(self) -> None:
        self._timers.after(BEAT_S, self._take_results)
        while self._calls and self._calls[0][0].done():
            called, then, fail = self._calls.popleft()
            if (problem := called.exception()) is None:
                then(called.result())
            else:
                fail(str(problem))

    def complain(self, text: str) -> None:
        """Say something once."""
        if text not in self._complaints:
            self._complaints.add(text)
            self._setting.say(text)

    # ------------------------------------------------------------------ lines

    def _hello(self, hello: frames.NodeHello, peer: Peer) -> bool:
        node = self.node(hello.node)
        if why := self._why_refused(node, hello):
            peer.send(frames.Cannot(why))
            self.complain(f"node {node.name} was refused: {why}")
            return False
        node.hang_up()
        peer.be_client()
        node.peer, node.process = peer, hello.process
        node.state, node.heard_at = "joining", self._now()
        node.devices, node.why_not = (), ""
        peer.hear(frames.from_node, partial(self._said, node))
        peer.on_end = partial(self._hung_up, node)
        peer.send(frames.Welcome(self._setting.recipe.resolved()))
        return True

    def _why_refused(self, node: JoinedNode, hello: frames.NodeHello) -> str:
        if hello.version != gpusched.__version__:
            return (
                f"gpusched {hello.version or 'of an older version'} runs there, {gpusched.__version__} on the "
                f"daemon's machine: install the same version on both"
            )
        if node.peer is not None and node.process != hello.process:
            # Two processes of one name would push each other out for ever.
            return f"another machine is node {node.name} already; give this one a name of its own: --name"
        return ""

    def _said(self, node: JoinedNode, frame: Any) -> None:
        node.heard_at = self._now()
        match frame:
            case frames.Beat(readings=readings):
                node.readings = tuple(readings)
            case frames.Joined():
                self._joined(node, frame)
            case frames.Reconciled():
                self._reconciled(node)
            case frames.Said(text=text):
                self._setting.say(f"node {node.name}: {text}")
            case frames.Cannot(why=why):
                self._cannot(node, why)
            case _:
                self._heard(node, frame)

    def _cannot(self, node: JoinedNode, why: str) -> None:
        node.why_not = why
        if node.peer is not None:
            node.peer.close()
        self._lose(node, why)

    def _joined(self, node: JoinedNode, frame: frames.Joined) -> None:
        if why := self._keys.disproof(node.name, frame.proof):
            self._cannot(node, why)
            return
        node.devices = tuple(frame.devices)
        if frame.slowest_s > SLOW_S:
            node.patience_s = SLOW_STEPS * frame.slowest_s
            self.complain(
                f"node {node.name}: {self._root} takes {frame.slowest_s:.1f} s to write there, so the node is given up "
                f"after {self._lost_after_s + node.patience_s:.0f} s of silence, not {self._lost_after_s:g}"
            )
        there = {device.id: device.why_not for device in node.devices}
        for name in self._devices_of(node):
            why = there.get(name, "it was not there any more when its node came back")
            if why and name not in node.kept_out:
                self._quarantine(name, why, passing=name in there)
        if self._may_reconcile:
            self._reconcile(node)

    def _reconcile(self, node: JoinedNode) -> None:
        assert node.peer is not None
        node.peer.send(node.reconcile())

    def _reconciled(self, node: JoinedNode) -> None:
        node.state = "up"
        new = [device for device in node.devices if device.id not in self._known]
        if new and self._is_open:
            self._take_up(new)
        for frame in node.outstanding():
            node.send(frame)

    def _take_up(self, new: Sequence[Device]) -> None:
        """Have the search use devices of a node that has joined it."""
        islands = {device.id: device.island for device in new}
        self._known.update(islands)
        self._emit(DevicesJoined(at=self._now(), devices=tuple(islands), islands=islands))
        for device in new:
            if not device.usable:
                self._quarantine(device.id, device.why_not)

    def _hung_up(self, node: JoinedNode) -> None:
        """Have a node whose line is gone started again, in case its process has died; else the node dials by itself."""
        node.peer = None
        if node.state != "lost":
            node.state = "away"
            self._start(node.name)

    # ------------------------------------------------------------------ silence

    def _beat(self) -> None:
        """Give a sign of life to every node, and give up those that give none."""
        now = self._now()
        if now - self._beat_at > BEAT_S + self._lost_after_s / 2:
            for node in self.nodes.values():  # this daemon was suspended: no node was heard
                node.heard_at = max(node.heard_at, now - BEAT_S)
        self._beat_at = now
        for node in self.nodes.values():
            if node.peer is not None:
                node.peer.send(frames.Beat())
            limit_s = self._lost_after_s + node.patience_s
            if node.state == "joining":
                limit_s = JOIN_LIMIT_S
            if now - node.heard_at > limit_s:
                self._lose(node, f"no sign of life for {now - node.heard_at:.1f} s")
        self._timers.after(BEAT_S, self._beat)

    def _lose(self, node: JoinedNode, why: str) -> None:
        """Give a node up: its devices are out of use, and its trials are lost."""
        if node.state == "lost":
            return
        node.state = "lost"
        node.hang_up()
        if self._is_open:
            self._setting.say(f"node {node.name} is given up: {why}")
        node.releasing.clear()
        reason = f"node {node.name} was lost: {why}"
        for device in self._devices_of(node):
            node.kept_out.setdefault(device, reason)
            self._quarantine(device, reason)
        self._lost(node)

    def _quarantine(self, device: str, reason: str, *, passing: bool = True) -> None:
        self._emit(DeviceQuarantined(at=self._now(), device=device, reason=reason, passing=passing))

    def _devices_of(self, node: JoinedNode) -> list[str]:
        """Return the devices of a node that the search knows."""
        return sorted(device for device in self._known if node_of(device) == node.name)

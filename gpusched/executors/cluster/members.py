"""The nodes of a search: how they join, fall silent, and come back.

* A silent node may be well, and so may its trials: it is given up after the recipe's ``node_patience``, or at once
  where the cluster says that the node is gone.
* A node that comes back ends what it finds of trials that are not its own any more, and has its devices proven clean,
  before any is used. One that the cluster calls gone is told to end its trials and to leave: its devices may be another
  job's.
* The bootstrap may take seconds, so it is called in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor as Helper
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from gpusched.core.events import Event, QuarantineChanged
from gpusched.devices.base import Device
from gpusched.errors import DeviceError
from gpusched.executors.cluster.bootstrap import Bootstrap, NodeOffer
from gpusched.executors.cluster.line import (
    Beat,
    Bye,
    Happened,
    Joined,
    Keys,
    Listener,
    NodeHello,
    Reconcile,
    Reconciled,
    Welcome,
    from_node,
    say_over,
)
from gpusched.executors.cluster.nodes import JoinedNode, node_of
from gpusched.executors.hub import Peer
from gpusched.executors.live import Setting, Timers, joined
from gpusched.folder.files import last_line
from gpusched.protocol import Remark

BEAT_S = 1.0
JOIN_LIMIT_S = 60.0
"""Time that nodes have to join at the beginning, and one that said hello to open its devices."""
LOOK_EVERY_S = 10.0
"""Time between two questions to the bootstrap: which nodes are there now? A lost cluster is joined anew for each."""

Wait = Callable[[float, Callable[[], bool]], None]


class Members:
    """Nodes by name, lost ones among them. ``emit`` takes events about devices.

    ``heard`` gets a node's events; ``lost`` a node given up.
    """

    def __init__(
        self,
        setting: Setting,
        bootstrap: Bootstrap,
        timers: Timers,
        *,
        emit: Callable[[Event], None],
        heard: Callable[[JoinedNode, Happened], None],
        lost: Callable[[JoinedNode], None],
    ) -> None:
        self.nodes: dict[str, JoinedNode] = {}
        self._setting = setting
        self._keys = Keys(setting.paths.root)
        self._bootstrap = bootstrap
        self._timers = timers
        self._now = timers.now
        self._emit, self._heard, self._lost = emit, heard, lost
        self._patience_s = setting.recipe.node_patience_s
        self.look_every_s = LOOK_EVERY_S
        self._is_open = False
        #: Whether the search has said which trials should live; until then no node is told.
        self._may_reconcile = not setting.devices
        self._offers: dict[str, NodeOffer] = {}
        self._complaints: set[str] = set()
        self.helper: Helper = ThreadPoolExecutor(1, "gpusched-bootstrap")
        self._call: Future[list[NodeOffer]] | None = None
        self._listener: Listener | None = None
        self._beat_at = 0.0

    def open(self, wait: Wait) -> tuple[Device, ...]:
        """Wait for the nodes to join; return their devices. Raises DeviceError where none joins."""
        self._keys.make()
        # Nodes start while the bootstrap is asked: they must not read there that the search is over.
        self._keys.address.unlink(missing_ok=True)
        call = self._call = self.helper.submit(self._bootstrap.nodes)
        call.add_done_callback(lambda _call: self._setting.hub.wake())
        wait(float("inf"), call.done)
        if not call.result():
            refused = [f"{name}: {why}" for name, why in self._bootstrap.refused.items()]
            why = "; ".join(sorted(refused)) or "none has what `devices` asks for"
            raise DeviceError(f"the cluster has no node that could be used: {why}")
        self._setting.hub.register(NodeHello, self._hello)
        self._listener = Listener(self._keys, self._bootstrap.host, self._setting.hub)
        takes_over = bool(self._setting.devices)
        for device in self._setting.devices:
            self.node(node_of(device)).known.add(device)
        self._look()
        limit_s = self._patience_s if takes_over else JOIN_LIMIT_S
        wanted = [node for node in self.nodes.values() if node.name in self._offers]
        names = ", ".join(sorted(node.name for node in wanted))
        self._setting.say(f"the cluster gives the nodes {names}: {limit_s:.0f} s for them to join")
        is_in = "joining" if takes_over else "up"
        wait(limit_s, lambda: all(node.devices and node.state == is_in for node in wanted))
        self._beat_at = self._now()
        self._timers.after(BEAT_S, self._beat)
        missing = [node for node in wanted if not node.devices]
        reasons = {node.name: self._not_joined(node, limit_s) for node in missing}
        for node in missing:
            self._setting.say(f"node {node.name} is not used: {reasons[node.name]}")
            node.state = "lost"
        if not takes_over and missing == wanted:
            why = "; ".join(sorted({*reasons.values()}))
            raise DeviceError(f"no node of the cluster can be used: {why}")
        if not takes_over:
            for node in self.nodes.values():
                node.known = {device.id for device in node.devices}
        self._is_open = True
        return tuple(device for node in self.nodes.values() for device in node.devices)

    def _not_joined(self, node: JoinedNode, limit_s: float) -> str:
        said = last_line(self._keys.folder / f"{node.name}.log") or "it said nothing"
        return f"it has not joined within {limit_s:.0f} s: {said}"

    def node(self, name: str) -> JoinedNode:
        """Return the node of this name; one that is not known yet becomes so."""
        if name not in self.nodes:
            self.nodes[name] = JoinedNode(name, heard_at=self._now())
        return self.nodes[name]

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
                self._lose(node, "it has not come back to the resumed search")

    def close(self) -> None:
        """Have the nodes' processes end, and give the machines back."""
        for node in self.nodes.values():
            if node.peer is not None:
                node.peer.send(Bye())
            node.hang_up()
        if self._listener is not None:
            self._listener.close()
        say_over(self._keys)
        self.helper.shutdown(wait=True, cancel_futures=True)
        self._bootstrap.close()

    # ------------------------------------------------------------------ the bootstrap

    def _look(self) -> None:
        """Ask which nodes there are; a question may take longer than the time between two."""
        self._take_answer()
        if self._call is None:
            self._call = self.helper.submit(self._bootstrap.nodes)
        self._timers.after(self.look_every_s, self._look)

    def _take_answer(self) -> None:
        if self._call is not None and self._call.done():
            called, self._call = self._call, None
            if (problem := called.exception()) is not None:
                self.complain(f"the cluster: {problem}")
            else:
                self._offered(called.result())
                for name, why in self._bootstrap.refused.items():
                    self.complain(f"node {name} is not used: {why}")

    def _offered(self, offers: Iterable[NodeOffer]) -> None:
        before, self._offers = self._offers, {offer.name: offer for offer in offers}
        for name in self._offers:
            self.node(name)
        for node in self.nodes.values():
            offer = self._offers.get(node.name)
            if offer is None or offer != before.get(node.name, offer):
                if node.peer is not None:  # its devices may be another job's
                    node.peer.send(Bye(ends_trials=True))
                if self._is_open:
                    self._lose(node, "the cluster has withdrawn it, or some of its devices")

    def complain(self, text: str) -> None:
        """Say something once."""
        if text not in self._complaints:
            self._complaints.add(text)
            self._setting.say(text)

    # ------------------------------------------------------------------ lines

    def _hello(self, hello: NodeHello, peer: Peer) -> bool:
        node = self.node(hello.node)
        if node.name not in self._offers:
            peer.send(Bye(ends_trials=True))
            return False
        node.hang_up()
        node.peer = peer
        # One that can run no trial dials again and again: it stays away, or lost, until its devices are open.
        if node.state != "lost":
            node.state = "joining"
        node.devices = ()
        peer.hear(from_node, partial(self._said, node))
        peer.on_end = partial(self._hung_up, node)
        peer.send(Welcome(self._setting.recipe.resolved()))
        return True

    def _said(self, node: JoinedNode, frame: Any) -> None:
        match frame:
            case Beat(readings=readings):
                node.readings = tuple(readings)
            case Joined():
                self._joined(node, frame)
            case Reconciled():
                self._reconciled(node)
            case Remark(full=True):
                self._setting.refused()
            case Remark(text=text):
                self._setting.say(f"node {node.name}: {text}")
            case Happened():
                self._heard(node, frame)
            case _:
                pass
        if node.devices:
            node.heard_at = self._now()

    def _joined(self, node: JoinedNode, frame: Joined) -> None:
        node.state, node.devices = "joining", tuple(frame.devices)
        there = {device.id: device.why_not for device in node.devices}
        for name in sorted(node.known):
            why = there.get(name, "it was not there any more when its node came back")
            if why and name not in node.kept_out:
                self._quarantine(name, why)
        if self._may_reconcile:
            self._reconcile(node)

    def _reconcile(self, node: JoinedNode) -> None:
        assert node.peer is not None
        live = [trial.live for trial in node.trials.values() if trial.unsent is None]
        there = {device.id for device in node.devices}
        kept_out = {name: why for name, why in node.kept_out.items() if name in there}
        node.peer.send(Reconcile(live, kept_out))

    def _reconciled(self, node: JoinedNode) -> None:
        node.state = "up"
        new = [device for device in node.devices if device.id not in node.known]
        if new and self._is_open:
            node.known.update(device.id for device in new)
            self._emit(joined(new, self._now()))
        for frame in node.outstanding():
            node.send(frame)

    def _hung_up(self, node: JoinedNode) -> None:
        """Wait for the node to dial again, or for its next process."""
        node.peer = None
        if node.state != "lost":
            node.state = "away"

    # ------------------------------------------------------------------ silence

    def _beat(self) -> None:
        """Look for nodes that give no sign of life."""
        now = self._now()
        if now - self._beat_at > 2 * BEAT_S:
            for node in self.nodes.values():  # this daemon was suspended: no node was heard
                node.heard_at = max(node.heard_at, now - BEAT_S)
        self._beat_at = now
        self._take_answer()
        for node in self.nodes.values():
            silent_s = now - node.heard_at
            limit_s = JOIN_LIMIT_S if node.state in ("absent", "joining") else self._patience_s
            if silent_s > limit_s:
                silent = f"it has been silent for {silent_s:.0f} s"
                self._lose(node, silent if node.devices else self._not_joined(node, limit_s))
        self._timers.after(BEAT_S, self._beat)

    def _lose(self, node: JoinedNode, why: str) -> None:
        """Give a node up: its devices are out of use, and its trials are lost."""
        if node.state == "lost":
            return
        node.state, node.readings = "lost", ()
        node.hang_up()
        if self._is_open:
            self._setting.say(f"node {node.name} is given up: {why}")
        node.releasing.clear()
        reason = f"node {node.name} was lost: {why}"
        for device in sorted(node.known):
            node.kept_out.setdefault(device, reason)
            self._quarantine(device, reason)
        self._lost(node)

    def _quarantine(self, device: str, reason: str) -> None:
        self._emit(QuarantineChanged(at=self._now(), device=device, reason=reason))

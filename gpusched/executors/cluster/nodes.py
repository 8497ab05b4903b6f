"""A node as the daemon sees it: its line, its devices, the trials on it, and what was asked of it and not answered.

    absent ──hello──▶ joining ──reconciled──▶ up ──line lost──▶ away ──hello within the limit──▶ joining
                                               └──── silent for too long, or called gone ────▶ lost ──joined──▶ joining

A command is kept until it is answered, and sent again when the node is back: carried out twice is as good as once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    QuarantineChanged,
    Reported,
)
from gpusched.devices.base import Device, Reading
from gpusched.executors.base import LiveTrial
from gpusched.executors.cluster.line import Do, Happened
from gpusched.executors.hub import Peer
from gpusched.protocol import Frame

NodeState = Literal["absent", "joining", "up", "away", "lost"]


@dataclass
class NodeTrial:
    """An incarnation on a node. ``asked``: commands about it, the newest of each kind."""

    live: LiveTrial
    #: The launch, as long as the node could not be told.
    unsent: Launch | None = None
    asked: dict[type, Command] = field(default_factory=dict)


@dataclass
class JoinedNode:
    """One node. Names of devices are the cluster's, ``node/device``."""

    name: str
    state: NodeState = "absent"
    peer: Peer | None = None
    heard_at: float = 0.0
    devices: tuple[Device, ...] = ()
    #: Those that the search knows, by name; of a node that joins later, none until it has.
    known: set[str] = field(default_factory=set)
    readings: tuple[Reading, ...] = ()
    trials: dict[int, NodeTrial] = field(default_factory=dict)
    releasing: set[str] = field(default_factory=set)
    #: Devices in quarantine for a reason that may pass, and the reason.
    kept_out: dict[str, str] = field(default_factory=dict)

    def send(self, frame: Frame) -> None:
        """Send a frame if the node can take commands; what it must not miss is kept elsewhere."""
        if self.state == "up" and self.peer is not None:
            self.peer.send(frame)

    def hang_up(self) -> None:
        """Close the line without a call of ``on_end``."""
        if self.peer is not None:
            self.peer.on_end = None
            self.peer.close()
            self.peer = None

    # ------------------------------------------------------------------ commands

    def launch(self, command: Launch, seq: int) -> None:
        live = LiveTrial(command.trial, command.incarnation, command.devices, seq)
        self.trials[command.trial] = NodeTrial(live, None if self.state == "up" else command)
        self.send(Do.of(command, seq))

    def ask(self, command: Yield | Save | Kill) -> None:
        """Pass on a command about an incarnation that is here."""
        self.trials[command.trial].asked[type(command)] = command
        self.send(Do.of(command))

    def release(self, devices: Iterable[str]) -> None:
        names = tuple(devices)
        self.releasing.update(names)
        self.send(Do.of(ConfirmRelease(names)))

    # ------------------------------------------------------------------ the line

    def outstanding(self) -> Iterator[Do]:
        """Yield what was asked and not answered: the node has just reconciled."""
        for trial in self.trials.values():
            if trial.unsent is not None:
                yield Do.of(trial.unsent, trial.live.last_seq)
                trial.unsent = None
            yield from map(Do.of, trial.asked.values())
        if self.releasing:
            yield Do.of(ConfirmRelease(tuple(sorted(self.releasing))))

    def take(self, frame: Happened, now: float) -> Event | None:
        """Return the node's event as the search's; None for that of an incarnation that is not here any more."""
        event: Event = frame.read()
        event.at = now
        match event:
            case DevicesReleased(devices=devices):
                self.releasing.difference_update(devices)
            case QuarantineChanged(device=device, reason=""):
                self.kept_out.pop(device, None)
            case QuarantineChanged(device=device):
                self.releasing.discard(device)
                self.kept_out[device] = event.reason
            case _:
                return event if self._follow(event) else None
        return event

    def _follow(self, event: Event) -> bool:
        """Note how far an incarnation is; False where it is not here."""
        trial = self.trials.get(getattr(event, "trial", -1))
        if trial is None or trial.live.incarnation != getattr(event, "incarnation", -1):
            return False
        match event:
            case Reported():
                if event.seq <= trial.live.last_seq:
                    return False
                trial.live = replace(trial.live, last_seq=event.seq)
            case CheckpointSaved():
                trial.live = replace(trial.live, saved_step=event.step)
                trial.asked.pop(Save, None)
            case _:
                pass
        return True


def node_of(device: str) -> str:
    """Return the node of a device by the cluster's name."""
    return device.partition("/")[0]

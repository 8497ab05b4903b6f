"""Frames between the daemon and a node's process; each is a line of JSON on the TLS connection of ``line.py``.

Devices have the cluster's names in all of them, ``node/device``. The frames stand here and not in ``protocol`` as
they carry events, commands and devices, which are above that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import ValidationError, convert, field

from gpusched import __version__
from gpusched.core.commands import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event
from gpusched.devices.base import Device, Reading
from gpusched.executors.base import LiveTrial
from gpusched.folder.reports import REPORT_LIMIT_BYTES
from gpusched.protocol import CLIENT_FRAME_BYTES, BadFrame, Count, Frame, decoder

EVENTS_MAX = CLIENT_FRAME_BYTES // (2 * REPORT_LIMIT_BYTES)
"""Events of a frame: reports, the largest of them, are many after a reconcile."""


class NodeHello(Frame, tag=f"node of gpusched {__version__}"):
    """First frame of a node's process; one of another version is no frame, and hung up on."""

    node: str


class Joined(Frame, tag="joined"):
    """Devices of the node, which are open."""

    devices: list[Device]


class Cannot(Frame, tag="cannot"):
    """Reason why the node can run no trial."""

    why: str


class Reconciled(Frame, tag="reconciled"):
    """All that ``Reconcile`` asked for has been found out, and told."""


class Happened(Frame, tag="happened"):
    """Events in the order in which they happened, each with the name of its kind."""

    events: list[tuple[str, Any]]

    @classmethod
    def of(cls, events: Sequence[Event]) -> Iterator[Happened]:
        """Make frames of these events, none longer than the daemon takes."""
        for first in range(0, len(events), EVENTS_MAX):
            some = events[first : first + EVENTS_MAX]
            yield cls([(type(event).__name__, event) for event in some])

    def read(self) -> list[Event]:
        """Return the events. Raises BadFrame."""
        return [_read(EVENT_TYPES, name, fields) for name, fields in self.events]


class Said(Frame, tag="said"):
    """A remark for the log and the dashboard."""

    text: str


class Beat(Frame, tag="beat"):
    """A sign of life, once a second; from a node with what its devices look like now."""

    readings: list[Reading] = field(default_factory=list)


class Welcome(Frame, tag="welcome"):
    """Answer of a daemon that takes the node; ``recipe`` has the values of ``env``."""

    recipe: dict[str, Any]


class Reconcile(Frame, tag="reconcile"):
    """All incarnations that should have processes on the node; any other found there is ended.

    ``kept_out``: devices in quarantine for a reason that may pass, and the reason.
    """

    live: list[LiveTrial]
    kept_out: dict[str, str] = field(default_factory=dict)


class Do(Frame, tag="do"):
    """A command to carry out. ``seq``: number of the last report of the trial that the search knows."""

    name: str
    command: Any
    seq: Count = 0

    @classmethod
    def of(cls, command: Command, seq: int = 0) -> Do:
        """Make the frame of this command."""
        return cls(type(command).__name__, command, seq)

    def read(self) -> Command:
        """Return the command. Raises BadFrame."""
        found: Command = _read(COMMAND_TYPES, self.name, self.command)
        return found


class Ack(Frame, tag="ack"):
    """A report is dealt with: its rank may be answered."""

    trial: Count
    incarnation: Count
    seq: Count


class Leaving(Frame, tag="leaving"):
    """The machine is about to end; its trials are to save and leave."""


class Bye(Frame, tag="bye"):
    """End of the node's process: the search is over, or (``ends_trials``) the node is the search's no more."""

    ends_trials: bool = False


from_stranger = decoder(NodeHello)
from_node = decoder(Joined | Cannot | Reconciled | Happened | Said | Beat | Leaving)
to_node = decoder(Welcome | Reconcile | Do | Ack | Beat | Bye)


def _read(kinds: Any, name: str, fields: Any) -> Any:
    try:
        return convert(fields, kinds[name])
    except (KeyError, ValidationError) as problem:
        raise BadFrame(f"{name[:40]!r}: {problem}") from None

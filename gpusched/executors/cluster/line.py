"""The line between the daemon and a node, and the frames on it, each a line of JSON.

TLS over TCP, both ends checked against the certificate of this experiment: the daemon makes one key and its certificate
in the experiment's shared folder; both ends show that certificate and trust no other. Whoever can read that folder can
be either end; so can only the user (0700, 0600). ``cluster.json`` there says where the newest daemon listens: nodes
dial, the daemon never does.

Devices have the cluster's names in all frames, ``node/device``. The frames stand here and not in ``protocol`` as they
carry events, commands and devices, which are above that file.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import ssl
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

from msgspec import ValidationError, convert, field

from gpusched import __version__
from gpusched.core.commands import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event
from gpusched.devices.base import Device, Reading
from gpusched.errors import GpuschedError
from gpusched.executors.base import LiveTrial
from gpusched.executors.hub import Hub
from gpusched.folder.files import own_folder, private_folder, read_json, write_durably
from gpusched.protocol import BadFrame, Count, Frame, Remark, decoder

DIAL_LIMIT_S = 5.0
SILENT_MS = 20_000
"""The kernel ends a node's line on which no beat is acknowledged for so long."""
_KINDS: dict[str, type] = {**EVENT_TYPES, **COMMAND_TYPES}


class NodeHello(Frame, tag="node"):
    """First frame of a node's process, of this version: ``dial`` sees to that."""

    node: str


class Joined(Frame, tag="joined"):
    """Devices of the node, which are open."""

    devices: list[Device]


class Reconciled(Frame, tag="reconciled"):
    """All that ``Reconcile`` asked for has been found out, and told."""


class Carried(Frame):
    """An event or a command, with the name of its kind."""

    name: str
    body: Any

    @classmethod
    def of(cls, body: Event | Command, *more: int) -> Self:
        """Make the frame of this event or command."""
        return cls(type(body).__name__, body, *more)

    def read(self) -> Any:
        """Return the event or the command. Raises BadFrame."""
        try:
            return convert(self.body, _KINDS[self.name])
        except (KeyError, ValidationError) as problem:
            raise BadFrame(f"{self.name[:40]!r}: {problem}") from None


class Happened(Carried, tag="happened"):
    """An event."""


class Beat(Frame, tag="beat"):
    """A node's sign of life, once a second, with what its devices look like now."""

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


class Do(Carried, tag="do"):
    """A command to carry out. ``seq``: number of the last report of the trial that the search knows."""

    seq: Count = 0


class Ack(Frame, tag="ack"):
    """A report is dealt with: its rank may be answered."""

    trial: Count
    incarnation: Count
    seq: Count


class Bye(Frame, tag="bye"):
    """End of the node's process: the search is over, or (``ends_trials``) the node is the search's no more."""

    ends_trials: bool = False


from_stranger = decoder(NodeHello)
from_node = decoder(Joined | Reconciled | Happened | Remark | Beat)
to_node = decoder(Welcome | Reconcile | Do | Ack | Bye)


# ---------------------------------------------------------------- TLS


class Keys:
    """The files of the shared folder ``cluster/`` that a line needs."""

    def __init__(self, shared: Path) -> None:
        self.folder = shared / "cluster"
        #: Where the newest daemon listens: ``{"host", "port", "version"}``; ``{"over": true}`` after the search.
        self.address = self.folder / "cluster.json"
        self.certificate = self.folder / "line.pem"
        self.key = self.folder / "line.key"

    def make(self) -> None:
        """Make key and certificate, unless they are there. Raises GpuschedError without the library."""
        if self.certificate.exists():
            return
        try:
            key, certificate = _self_signed()
        except ImportError:
            why = "a cluster needs the library cryptography: pip install cryptography"
            raise GpuschedError(why) from None
        private_folder(self.folder)
        write_durably(self.key, key)
        write_durably(self.certificate, certificate)

    def context(self, purpose: Any) -> ssl.SSLContext:
        """Return the rules of a line: TLS 1.3, and this experiment's certificate alone."""
        rules = ssl.SSLContext(purpose)
        rules.minimum_version = ssl.TLSVersion.TLSv1_3
        rules.check_hostname = False  # the certificate itself is known, whatever the host is called
        rules.verify_mode = ssl.CERT_REQUIRED
        rules.load_cert_chain(self.certificate, self.key)
        rules.load_verify_locations(self.certificate)
        rules.sslsocket_class = Line
        return rules


def _self_signed() -> tuple[bytes, bytes]:
    """Make a key and its certificate, as PEM. Valid since yesterday: the clocks of nodes differ."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpusched")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=3650),
    ).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return (
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
        certificate.sign(key, hashes.SHA256()).public_bytes(pem),
    )


class Line(ssl.SSLSocket):
    """A TLS connection that behaves as a plain non-blocking socket, for ``Peer``."""

    def recv(self, size: int = 4096, flags: int = 0) -> bytes:
        """Return all that has been decrypted, perhaps more than ``size``: no descriptor tells of the rest."""
        data = b""
        try:
            data = super().recv(size, flags)
            while data and (left := self.pending()):
                data += super().recv(left, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not data:
                raise BlockingIOError from None
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


class Listener:
    """The daemon's end, on one interface: lines come to ``hub``. Raises GpuschedError."""

    def __init__(self, keys: Keys, host: str, hub: Hub) -> None:
        self._hub = hub
        self._rules = keys.context(ssl.PROTOCOL_TLS_SERVER)
        self._rules.num_tickets = 0
        try:
            self._socket = socket.create_server((host, 0), backlog=64)
            self._socket.setblocking(False)
            port = self._socket.getsockname()[1]
            where = {"host": host, "port": port, "version": __version__}
            write_durably(keys.address, json.dumps(where).encode())
        except OSError as error:
            raise GpuschedError(f"the daemon cannot listen for nodes on {host}: {error}") from None
        hub.listen(self._socket, self._greet)

    def _greet(self, line: socket.socket) -> None:
        """Put TLS on a connection; the handshake follows as frames are read."""
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = self._rules.wrap_socket(line, server_side=True, do_handshake_on_connect=False)
        self._hub.greet(secure, from_stranger)

    def close(self) -> None:
        self._hub.unwatch(self._socket.fileno())
        self._socket.close()


def say_over(keys: Keys) -> None:
    """Tell nodes that have no line just now that the search is over."""
    with suppress(OSError):
        write_durably(keys.address, b'{"over": true}')


def is_over(keys: Keys) -> bool:
    """Whether a daemon has said that the search is over; a folder that is away for a while says nothing."""
    return bool((read_json(keys.address) or {}).get("over"))


def dial(keys: Keys) -> ssl.SSLSocket | None:
    """Connect to the newest daemon; None where none answers, or where the answer is not from it."""
    where = read_json(keys.address) or {}
    if (theirs := where.get("version", __version__)) != __version__:
        _tell_once(
            f"gpusched is {__version__} here and {theirs} at the daemon: install {theirs} here"
        )
        return None
    try:
        with socket.create_connection(
            (str(where["host"]), int(where["port"])), DIAL_LIMIT_S
        ) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS)
            secure = keys.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(line)
        secure.setblocking(False)
        return secure
    except OSError as error:
        _tell_once(f"no daemon of this search answers at {where['host']}:{where['port']}: {error}")
    except (KeyError, TypeError, ValueError):  # no daemon has said where it is
        pass
    return None


@cache
def _tell_once(text: str) -> None:
    """Say in the log of a node what keeps it from its daemon."""
    print(text, flush=True)


def home_of(shared: Path, name: str) -> Path:
    """Return the folder of a node on its own disk, made 0700: socket, epoch and logs of what runs there.

    Raises GpuschedError where it belongs to another user.
    """
    return own_folder(Path(tempfile.gettempdir()) / f"gpusched-{os.getuid()}", shared, name)

"""From a record to its line and back: what each end may be sent, checked as it is decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from msgspec import DecodeError, Struct, convert, to_builtins
from msgspec.json import Decoder, Encoder

from gpusched import protocol

WORKER_FRAME_BYTES = 64 << 10
"""The longest frame of a rank or a shim."""
CLIENT_FRAME_BYTES = 1 << 20
"""The longest request of a client, and the longest frame of the warm server."""
ANSWER_FRAME_BYTES = 16 << 20
"""The longest frame that a client is sent: the view of a large search."""


class BadFrame(ValueError):
    """A line that cannot be a frame of this protocol; the text says why."""


Decode = Callable[[bytes], Any]


def decoder(kinds: Any) -> Decode:
    """A function from a line to one of these records. Raises BadFrame, and nothing else."""
    decode = Decoder(kinds).decode

    def checked(line: bytes) -> Any:
        try:
            if b"\\ud" in line:  # perhaps half a character, which is in no encoding but JSON's own
                return convert(json.loads(line, parse_constant=_refuse), kinds)
            return decode(line)
        except (DecodeError, ValueError, RecursionError) as problem:
            raise BadFrame(str(problem)) from None

    return checked


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


from_stranger = decoder(protocol.RankHello | protocol.ShimHello | protocol.ClientHello)
from_rank = decoder(protocol.Report | protocol.Saved | protocol.Remark)
to_rank = decoder(protocol.Greeting | protocol.Answer)
from_shim = decoder(protocol.Exited)
to_shim = decoder(protocol.Greeting | protocol.StopTree)
FromServer = (
    protocol.Ready
    | protocol.PreloadFailed
    | protocol.Launched
    | protocol.LaunchFailed
    | protocol.ShimDied
)
from_server = decoder(FromServer)
to_server = decoder(protocol.LaunchSpec)
to_forked = decoder(protocol.Begin)
from_client = decoder(protocol.Ask)
to_client = decoder(protocol.Done | protocol.Refused | protocol.Shown | protocol.Lines)
report_from = decoder(protocol.Report)
word_from = decoder(protocol.Word)
exit_from = decoder(protocol.Exit)

_encode = Encoder().encode


def encode(record: Struct) -> bytes:
    """The record as a line; invalid Unicode (in a path, or in a script's output) is escaped."""
    try:
        return _encode(record) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(to_builtins(record)).encode() + b"\n"


class Inbox:
    """Cuts what comes over a connection into frames. ``decode`` may be replaced between two of them.

    ``is_lenient``: a bad frame of bearable length is passed over.
    """

    __slots__ = ("_buffer", "_is_lenient", "decode", "limit_bytes")

    def __init__(
        self, decode: Decode, limit_bytes: int = WORKER_FRAME_BYTES, *, is_lenient: bool = False
    ) -> None:
        self.decode = decode
        self.limit_bytes = limit_bytes
        self._is_lenient = is_lenient
        self._buffer = b""

    def feed(self, data: bytes = b"") -> Iterator[Any]:
        """Yield the frames that are whole now; one that is not taken comes first the next time. Raises BadFrame."""
        self._buffer = self._buffer + data if self._buffer else data
        while (end := self._buffer.find(b"\n")) >= 0:
            line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
            if end > self.limit_bytes:
                raise BadFrame(f"a frame of {end} bytes, more than {self.limit_bytes}")
            try:
                frame = self.decode(line)
            except BadFrame:
                if self._is_lenient:
                    continue
                raise
            yield frame
        if len(self._buffer) > self.limit_bytes:
            raise BadFrame(f"a frame of more than {self.limit_bytes} bytes")

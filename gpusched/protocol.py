"""Every frame between rank, shim, warm server, daemon and client: a typed record, decoded and checked here alone.

A frame is one JSON object on a line of its own; ``kind`` says which record it is. Both ends read these records, and
the decoder of what their line may carry:

    sender       frames                                                                    answers of the daemon
    rank 0       RankHello, Report, Saved, Remark                                          Greeting, Answer
    shim         ShimHello, Exited                                                         Greeting, StopTree
    warm server  Remark, Ready, Launched, LaunchFailed, ShimDied                           LaunchSpec
    client       Ask                                                                       Done, Refused, Shown, Lines

* Numbers are bounded and finite; a metric that is not finite is one of three strings. A field that a record does not
  have is passed over.
* A frame that is too long, malformed, or of a kind that this line does not carry is a ``BadFrame``; nothing else is
  raised, and the connection is closed.
* ``Report`` is one record for worker, wire, ``reports.jsonl``, journal, simulator and dashboard.

msgspec decodes a report four times faster than ``json`` and checks it on the way.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

try:
    from msgspec import DecodeError, Meta, Struct, field, to_builtins
    from msgspec.json import Decoder, Encoder
except ImportError as missing:
    raise ImportError(
        f"gpusched needs msgspec in the interpreter that `python` of the recipe names: "
        f"{sys.executable} -m pip install msgspec"
    ) from missing

Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Number = Annotated[int, Meta(ge=1, lt=1 << 53)]
Seconds = Annotated[float, Meta(ge=0, lt=1e15)]
Metric = (
    Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | float | Literal["nan", "inf", "-inf"]
)
Go = Literal["continue", "hold", "save", "yield", "leave"]
"""The daemon's answer: train on; put a copy aside; save and train on; save and leave; leave without saving."""
GO: tuple[Go, ...] = ("continue", "hold", "save", "yield", "leave")


class Frame(Struct, tag_field="kind", omit_defaults=True):
    """A record that is sent as a line."""


class OfLaunch(Frame):
    """A record about one incarnation of a trial."""

    trial: Count
    incarnation: Count


# ---------------------------------------------------------------------- rank 0 and the daemon


class RankHello(OfLaunch, tag="rank"):
    """Rank 0 of an incarnation speaks on this connection."""


class Report(Frame, tag="report"):
    """One report of a trial. ``seq`` counts the trial's reports; ``step_time_s``: training time of one step, in
    seconds; ``length``: steps of the script's own loop, where they are more than was told before in this launch.
    """

    incarnation: Count = field(name="i")
    seq: Number = field(name="n")
    step: Count = field(name="k")
    step_time_s: Seconds = field(default=0.0, name="s")
    metrics: dict[str, Metric] = field(default_factory=dict, name="m")
    length: Count | None = field(default=None, name="l")

    def metric(self, name: str) -> float | None:
        """The metric of this name; None where the value is not finite, or not there."""
        value = self.metrics.get(name, "nan")
        return None if isinstance(value, str) else float(value)


def as_metric(value: float) -> Metric:
    """The number as it stands in a report: one that is not finite is a string."""
    if -math.inf < value < math.inf:
        return value
    return "nan" if value != value else "inf" if value > 0 else "-inf"


class Saved(Frame, tag="saved"):
    """A checkpoint of this step is committed. ``save_s``: how long it took."""

    step: Count
    save_s: Seconds
    size_bytes: Count


class Remark(Frame, tag="remark"):
    """A sentence for the search's log and its warnings: what is odd and no error."""

    text: str
    full: bool = False  # whether a disk, or a quota, had no room for a checkpoint


class Greeting(Frame, tag="daemon"):
    """The first frame of a daemon: its epoch."""

    epoch: Count


class Answer(Frame, tag="answer"):
    """The reply to a report."""

    seq: Count
    go: Go


# ---------------------------------------------------------------------- shim and daemon


class ShimHello(OfLaunch, tag="shim"):
    """The shim of an incarnation speaks on this connection."""

    pid: Count
    start_time: Count


class RankError(Struct, omit_defaults=True):
    """The first error of an incarnation; ``rank`` is None where ranks could not even be started."""

    message: str
    rank: int | None = None
    traceback: str = ""

    def __str__(self) -> str:
        """The line for people first, the traceback below it."""
        head = self.message if self.rank is None else f"rank {self.rank}: {self.message}"
        return f"{head}\n{self.traceback}" if self.traceback else head


OUT_OF_GPU_MEMORY = "out of GPU memory"
"""Beginning of the error of an incarnation for which a GPU had too little memory."""
Why = Literal["yielded", "finished"]


class Word(Struct):
    """The content of ``last-word.json``: rank 0 has finished, or yielded, in good order."""

    why: Why
    step: Count | None = None
    saved_step: Count | None = None


class Exit(Struct, omit_defaults=True):
    """The content of ``exit.json`` (``processes/outcome.py``). ``codes``: by rank; ``stuck``: where which rank hung.

    ``overran_s``: the ranks were ended so long after their last word, as they had not ended by themselves.
    """

    outcome: Literal["yielded", "finished", "failed", "killed"]
    step: Count | None = None
    saved_step: Count | None = None
    codes: dict[str, int] = field(default_factory=dict)
    error: RankError | None = None
    stuck: str = ""
    overran_s: Seconds | None = None


class Exited(Frame, tag="exited"):
    """The tree is empty; ``record`` is the content of ``exit.json``."""

    record: Exit


class StopTree(Frame, tag="stop"):
    """SIGTERM to every rank's session, after ``grace_s`` SIGKILL to the tree. ``stacks``: note where they hang."""

    grace_s: Seconds
    stacks: bool = False


# ---------------------------------------------------------------------- warm server and daemon


class LaunchSpec(OfLaunch, tag="launch"):
    """All that a shim needs to run an incarnation. ``dir``: the trial's folder; ``module``: run ``script`` as this;
    ``rank_cpus``: the cores of each rank, one entry a rank.

    ``epoch`` is the daemon's that asks; without a daemon for ``tether_s`` the trial saves and leaves. Ranks that have
    said their last word may take ``leave_grace_s`` to end.
    """

    dir: str
    experiment_dir: str
    script: str
    args: list[str]
    cwd: str
    env: dict[str, str]
    rank_cpus: list[list[int]]
    python: str
    epoch: Count = 0
    tether_s: Seconds = 120.0
    leave_grace_s: Seconds = 30.0
    module: str = ""


class Ready(Frame, tag="ready"):
    """Every module is imported: the server can fork."""


class Launched(OfLaunch, tag="launched"):
    """The shim of an incarnation was forked; ``start_time`` is None where it has died already."""

    pid: Count
    start_time: Count | None


class LaunchFailed(OfLaunch, tag="launch_failed"):
    """Neither shim nor ranks of an incarnation are there: they could not be forked."""

    message: str


class ShimDied(OfLaunch, tag="shim_died"):
    """A shim is gone with all that it left behind. ``status``: as ``waitpid`` gives it."""

    pid: Count
    status: int


# ---------------------------------------------------------------------- client and daemon


class Ask(Frame, tag="ask"):
    """A request. ``in_s``, ``add_s``: seconds from now, or more than there were, of a deadline; ``hparams`` to try."""

    verb: str
    trial: Count | None = None
    in_s: float | None = None
    add_s: float | None = None
    hparams: dict[str, Any] | None = None


class Done(Frame, tag="done"):
    """The answer to a request."""

    answer: Any = None


class Refused(Frame, tag="refused"):
    """A request that could not be met, in words for people."""

    error: str
    exit_code: int = 1


class Shown(Frame, tag="view"):
    """A view for those who watch. ``over``: it is the last, in place of further frames."""

    view: dict[str, Any]
    over: bool = False


class Lines(Frame, tag="lines"):
    """Lines of the log for those who follow, as records (``dashboard/lines.py`` words them)."""

    records: list[dict[str, Any]]


# ---------------------------------------------------------------------- lines

FRAME_BYTES = 1 << 20
"""The longest frame that a daemon is sent, or sends to a process of a trial."""
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
            return decode(line)
        except (DecodeError, ValueError, RecursionError) as problem:
            raise BadFrame(str(problem)) from None

    return checked


FromServer = Remark | Ready | Launched | LaunchFailed | ShimDied

from_stranger = decoder(RankHello | ShimHello | Ask)
from_rank = decoder(Report | Saved | Remark)
to_rank = decoder(Greeting | Answer)
from_shim = decoder(Exited)
to_shim = decoder(Greeting | StopTree)
from_server = decoder(FromServer)
to_server = decoder(LaunchSpec)
from_client = decoder(Ask)
to_client = decoder(Done | Refused | Shown | Lines)
report_from = decoder(Report)
word_from = decoder(Word)
exit_from = decoder(Exit)

_encode = Encoder().encode


def encode(record: Struct) -> bytes:
    """The record as a line; what is no Unicode (of a path, or in a script's output) is replaced."""
    try:
        return _encode(record) + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(to_builtins(record), ensure_ascii=False)
        return text.encode("utf-8", "replace") + b"\n"


class Inbox:
    """Cuts what comes over a connection into frames. ``decode`` may be replaced between two of them."""

    __slots__ = ("_buffer", "decode", "limit_bytes")

    def __init__(self, decode: Decode, limit_bytes: int = FRAME_BYTES) -> None:
        self.decode = decode
        self.limit_bytes = limit_bytes
        self._buffer = b""

    def feed(self, data: bytes = b"") -> Iterator[Any]:
        """Yield the frames that are whole now; one that is not taken comes first the next time. Raises BadFrame."""
        self._buffer = self._buffer + data if self._buffer else data
        while (end := self._buffer.find(b"\n")) >= 0:
            line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
            if end > self.limit_bytes:
                raise BadFrame(f"a frame of {end} bytes, more than {self.limit_bytes}")
            yield self.decode(line)
        if len(self._buffer) > self.limit_bytes:
            raise BadFrame(f"a frame of more than {self.limit_bytes} bytes")

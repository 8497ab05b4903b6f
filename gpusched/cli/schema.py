"""Types of the objects that commands print with ``--json``: for ``gpusched help --json``, and held by tests.

A command that prints several objects prints one a line. More keys may come beside; none of these is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.json import schema

from gpusched.dashboard.model import View


class Started(Struct):
    """``--detach``: the search goes on in the background."""

    experiment: str
    folder: str
    daemon_pid: int


class Over(Struct):
    """The last line of a search that was watched to its end."""

    over: bool
    view: View
    folder: str


class Happened(Struct):
    """An event of a search. ``what``: its kind; ``text``: a sentence."""

    at: float
    what: str
    text: str
    trial: int | None = None


class Listed(Struct):
    experiment: str
    state: str
    metric: str | None
    best: float | None
    folder: str


class Best(Struct):
    experiment: str
    trial: int
    metric: str
    value: float
    step: int
    atoms: int | None
    seed: int | None
    hparams: Mapping[str, Any]
    checkpoint: str
    code: Mapping[str, Any] | None
    differs_now: list[str]


class Explained(Struct):
    trial: int
    state: str
    step: int
    metric: float | None
    why: str
    moves_when: str
    policy: list[str]
    story: list[Mapping[str, Any]]
    hparams: Mapping[str, Any]
    error: str | None


class Printed(Struct):
    rank: int
    stream: str
    line: str


class Checked(Struct):
    recipe: str
    ok: bool
    problems: list[str] = field(default_factory=list)


class Queued(Struct):
    """``before``: configurations that were asked for before this one and wait."""

    experiment: str
    hparams: Mapping[str, Any]
    before: int


class OfTrial(Struct):
    trial: int
    answer: str


class Moved(Struct):
    experiment: str
    deadline_s: float
    time_left_s: float


class Ended(Struct):
    experiment: str
    answer: str


class Row(Struct):
    """A report, or with ``--trials`` a trial. Beside: metrics and ``hparams.*``."""

    trial: int
    step: int
    atoms: int


class Removed(Struct):
    removed: list[str]
    bytes: int
    dry_run: bool


class Written(Struct):
    report: str


class Profiled(Struct):
    step_s: float
    scaling: Mapping[str, float]
    overhead_s: float | None


class Asked(Struct):
    experiment: str
    metric: str
    answers: list[Mapping[str, Any]]


class Diagnosed(Struct):
    name: str
    state: str
    detail: str
    advice: str


class Device(Struct):
    name: str


class Simulated(Struct):
    policy: str
    atoms: int
    deadline: float
    scaling: str
    delay: float
    seed: int
    best: float | None
    trials: int
    steps: int


#: By command, the types of the objects that it prints.
PRINTED: Mapping[str, tuple[type[Any], ...]] = {
    "run": (Started, Happened, Over),
    "resume": (Started, Happened, Over),
    "validate": (Checked,),
    "profile": (Profiled,),
    "whatif": (Asked,),
    "watch": (Happened, Over),
    "status": (View,),
    "ls": (Listed,),
    "best": (Best,),
    "logs": (Printed,),
    "explain": (Explained,),
    "pause": (OfTrial,),
    "unpause": (OfTrial,),
    "deadline": (Moved,),
    "try": (Queued,),
    "rerun": (Queued, Started, Happened, Over),
    "stop": (Ended, OfTrial),
    "cancel": (Ended,),
    "report": (Written,),
    "export": (Row,),
    "gc": (Removed,),
    "doctor": (Diagnosed,),
    "gpus": (Device,),
    "simulate": (Simulated,),
}


def schemas() -> dict[str, Any]:
    """Return by command the JSON schemas of the objects that it prints."""
    return {name: [schema(kind) for kind in kinds] for name, kinds in PRINTED.items()}

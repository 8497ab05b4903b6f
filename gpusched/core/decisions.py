"""Decisions (what a policy wants, in atoms) and commands (what an executor must do, in devices).

Both are imperative verbs. Every command that names a trial names the incarnation too, so that carrying it out twice
does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from msgspec import Struct

# ---------------------------------------------------------------- decisions: policy -> core, in atoms


@dataclass(frozen=True, slots=True)
class Start:
    """Draw the next configuration of the sequence and run it on ``atoms`` atoms.

    ``tag`` is the policy's own; the new trial carries it as ``trial.tag``, from ``Policy.on_start`` on.
    """

    atoms: int = 1
    reason: str = ""
    tag: Any = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a paused trial."""

    trial: int
    atoms: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """Yield at this step and go on with ``atoms`` atoms."""

    trial: int
    atoms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Yield at this step; may be resumed."""

    trial: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave at this step for good. A paused trial is stopped at once."""

    trial: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Complete:
    """The trial has had all the steps it may have."""

    trial: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call ``on_wake`` at this time (seconds since the experiment began)."""

    at: float


@dataclass(frozen=True, slots=True)
class AskForecast:
    """Have the trial's learning curve extrapolated; the result comes back through ``on_forecast``."""

    trial: int
    curve: tuple[float, ...]
    horizon: int
    target: float


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people something about the search as a whole."""

    text: str


Decision = Start | Resume | Resize | Pause | Stop | Complete | WakeAt | AskForecast | Say

# ---------------------------------------------------------------- commands: core -> executor, in devices


class Launch(Struct, frozen=True, omit_defaults=True):
    """Start this incarnation on these devices. They are confirmed free. ``seed`` of training; None: the search's."""

    trial: int
    incarnation: int
    devices: tuple[str, ...]
    hparams: Mapping[str, object]
    seed: int | None = None


class Yield(Struct, frozen=True):
    """Answer the trial's next report with "leave", saving a checkpoint first if ``save``."""

    trial: int
    incarnation: int
    save: bool


class Save(Struct, frozen=True):
    """Answer the trial's report with "save a checkpoint"; if it is to leave, it saves before it does."""

    trial: int
    incarnation: int


class Kill(Struct, frozen=True):
    """End the incarnation: SIGTERM, after ``grace_s`` SIGKILL to the whole tree.

    ``stacks``: it hangs; before that every rank writes down where it is.
    """

    trial: int
    incarnation: int
    grace_s: float
    stacks: bool = False


class ConfirmRelease(Struct, frozen=True):
    """Find out when nothing of ours is on these devices any more, and say so (or quarantine them)."""

    devices: tuple[str, ...]


class SetTimer(Struct, frozen=True):
    """Fire ``timer`` at this time. A timer set again moves."""

    timer: str
    at: float


class Forecast(Struct, frozen=True):
    """Extrapolate a learning curve outside the daemon's loop; answer with ``Forecasted``."""

    trial: int
    step: int
    curve: tuple[float, ...]
    horizon: int
    target: float


class Suggest(Struct, frozen=True):
    """Have the sampler suggest configuration ``n`` of the sequence; answer with ``Suggested``."""

    n: int


class KeepBest(Struct, frozen=True):
    """Make ``best/`` this checkpoint."""

    trial: int
    step: int
    metric: float


class Finish(Struct, frozen=True):
    """The experiment is over."""

    reason: str


Command = (
    Launch
    | Yield
    | Save
    | Kill
    | ConfirmRelease
    | SetTimer
    | Forecast
    | Suggest
    | KeepBest
    | Finish
)

COMMAND_TYPES: dict[str, type] = {kind.__name__: kind for kind in get_args(Command)}

"""Commands: what an executor must do, in devices. Imperative verbs.

Every command that names a trial names the incarnation too, so that carrying it out twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from msgspec import Struct


class Launch(Struct, frozen=True, omit_defaults=True):
    """Start this incarnation on these devices. They are confirmed free."""

    trial: int
    incarnation: int
    devices: tuple[str, ...]
    hparams: Mapping[str, object]


class Yield(Struct, frozen=True):
    """Answer the trial's next report with "leave", saving a checkpoint first if ``save``."""

    trial: int
    incarnation: int
    save: bool


class Save(Struct, frozen=True, omit_defaults=True):
    """Answer the trial's report with "save a checkpoint"; if it is to leave, it saves before it does.

    ``hold``: put a copy aside, which is committed when saves may cost time again, or as the trial ends.
    """

    trial: int
    incarnation: int
    hold: bool = False


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


class Suggest(Struct, frozen=True):
    """Have the sampler suggest configuration ``n`` of the sequence; answer with ``Suggested``."""

    n: int


class KeepBest(Struct, frozen=True):
    """Make ``best/`` this checkpoint, which was trained on so many atoms."""

    trial: int
    step: int
    metric: float
    atoms: int


Command = Launch | Yield | Save | Kill | ConfirmRelease | Suggest | KeepBest

COMMAND_TYPES: dict[str, type] = {kind.__name__: kind for kind in get_args(Command)}

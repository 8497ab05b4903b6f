"""What ``gpusched.init()`` does: find out where this process stands, join the other ranks, seed, say hello."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from gpusched.errors import GpuschedError
from gpusched.processes import stacks
from gpusched.worker import lastword, rng
from gpusched.worker.context import Context, read_context
from gpusched.worker.group import Group
from gpusched.worker.hparams import usage
from gpusched.worker.say import say
from gpusched.worker.trial import Trial

_GLOO_WAIT_S = 0.02

_trial: Trial | None = None


def start(defaults: Mapping[str, object] | None = None) -> Trial:
    """The trial of this process; the same one when called again."""
    global _trial
    if _trial is None:
        _trial = _start(defaults)
    return _trial


def _start(defaults: Mapping[str, object] | None) -> Trial:
    try:
        context = read_context(sys.argv[1:], os.environ, defaults)
    except GpuschedError as error:
        say(f"{error}")
        lastword.mark_failed()
        raise SystemExit(error.exit_code) from None
    if context.launcher == "nobody" and defaults is not None and "--help" in sys.argv[1:]:
        print(usage(sys.argv[0], defaults))
        raise SystemExit(0)
    with suppress(Exception):  # nobody asks a script that runs alone
        stacks.listen_as_rank()
    group = Group(context.rank, context.world_size)
    group.join(_device_kind(context))
    if context.launcher == "torchrun" and context.world_size > 1:
        atexit.register(_let_gloo_finish)
    rng.seed_everything(context.seed)
    trial = Trial(context, group)
    if context.waits is None:
        trial.connect()
    return trial


def _let_gloo_finish() -> None:
    """Have gloo's threads let go of the last tensors while there is an interpreter.

    They need the interpreter's lock for it; one that asks while the interpreter is being torn down brings the process
    down with SIGABRT (torch 2.13, "terminate called without an active exception"). Waiting gives them the lock.
    """
    time.sleep(_GLOO_WAIT_S)


def _device_kind(context: Context) -> Literal["cpu", "cuda"]:
    if context.device_kind is None and context.world_size > 1:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if context.device_kind == "cuda" else "cpu"

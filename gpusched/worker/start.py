"""Start of a script, ``gpusched.init()``: find out the process's place, join the other ranks, seed, say hello."""

from __future__ import annotations

import atexit
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpusched.errors import GpuschedError
from gpusched.worker import rng
from gpusched.worker.context import Context, read_context
from gpusched.worker.endings import say
from gpusched.worker.group import Group
from gpusched.worker.trial import Trial

_GLOO_WAIT_S = 0.02
_SPAWNED = re.compile(r"^--multiprocessing-fork$|multiprocessing\.forkserver")

_trial: Trial | None = None


OWNER_VARIABLE = "GPUSCHED_RANK_PROCESS"
"""Set by the process that is a rank, to tell the processes that it starts that they are not."""


def start(defaults: Mapping[str, object] | None = None, *, in_charge: bool = False) -> Trial:
    """Return the trial of this process; the same one when called again."""
    global _trial
    if _trial is None:
        _trial = _start(defaults)
    if in_charge:
        _trial.take_charge()
    return _trial


class Owner:
    """A trial whose trainer owns the loop and ends by itself: what the integrations have in common."""

    def __init__(self) -> None:
        #: The trial: ``hparams``, ``local_batch``, ``folder``.
        self.trial = start(in_charge=True)
        self._is_leaving = False

    def has_to_stop(self) -> bool:
        """Tell, after a report, whether the trainer stops here. Training that is over leaves by the script's end."""
        self._is_leaving = not self.trial.is_over and self.trial.should_yield()
        return self._is_leaving or self.trial.is_cut

    def end_if_leaving(self) -> None:
        """End the script, once the trainer has stopped, where the search has this trial leave.

        What follows training (a test, an export) is for training that is over, as behind ``trial.steps``.
        """
        if self._is_leaving:
            raise SystemExit(0)

    def _restored(self, name: str, *, keeps_generators: bool = False) -> Path | None:
        """Return a path in the checkpoint to continue from; None for a new trial.

        ``keeps_generators``: the trainer restores them itself, and seeds its samplers alike on every rank by them.
        """
        folder = self.trial.restored_files() if keeps_generators else self.trial.restored_dir
        return None if folder is None else folder / name


def _start(defaults: Mapping[str, object] | None) -> Trial:
    try:
        context = read_context(sys.argv[1:], os.environ, defaults)
    except GpuschedError as error:
        say(f"{error}")
        raise SystemExit(error.exit_code) from None
    is_rank = _claim_rank(context)
    if not is_rank:
        rng.seed_everything(context.seed)
        bare = replace(context, experiment=None, paths=None, is_helper=True)
        return Trial(bare, Group(0, 1))  # neither reports nor saves
    group = Group(context.rank, context.world_size)
    group.join(context.device_kind)
    if context.paths is None and context.world_size > 1:
        atexit.register(_let_gloo_finish)
    rng.seed_everything(context.seed)
    trial = Trial(context, group)
    select_gpu(trial, context)
    trial.begin()
    return trial


def select_gpu(trial: Trial, context: Context) -> None:
    """Make the rank's GPU the current one, so that a script's bare "cuda" is its own.

    Not by ``device_id=`` of ``init_process_group``: groups split off later would hang (NVIDIA-NeMo/RL#3189).
    """
    torch = sys.modules.get("torch")
    is_on_gpu = context.device_kind == "cuda"
    if is_on_gpu and torch is not None and torch.backends.cuda.is_built():
        _ = trial.device


def _claim_rank(context: Context) -> bool:
    """Tell whether this process is the rank that the environment describes; False in one that the rank has started.

    DataLoader workers and helpers that do not fork import the script anew, with ``gpusched.init()`` at its top.

    Raises:
        RuntimeError: A script that spawns its ranks itself.
    """
    if context.paths is None and context.world_size == 1:
        return True  # each process that runs a script alone has a trial of its own, below a notebook too
    launch = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}:{context.rank}:{context.incarnation}"
    mine = f"{os.getpid()}:{launch}"
    owner = os.environ.get(OWNER_VARIABLE, mine)
    if owner != mine and owner.partition(":")[2] == launch:
        return False
    if context.paths is not None and any(_SPAWNED.search(part) for part in sys.orig_argv):
        raise RuntimeError(
            "gpusched.init() in a process that this script has spawned: gpusched starts one process for each rank, as "
            "torchrun does. Instead of mp.spawn(main, ...) call main(rank, ...) itself, with rank = "
            'int(os.environ["RANK"]) and world_size = int(os.environ["WORLD_SIZE"]), and leave out what sets '
            "MASTER_ADDR and MASTER_PORT"
        )
    os.environ[OWNER_VARIABLE] = mine
    return True


def _let_gloo_finish() -> None:
    """Have gloo's threads let go of the last tensors while there is an interpreter.

    They need the interpreter's lock for it; one that asks while the interpreter is being torn down brings the process
    down with SIGABRT (torch 2.13, "terminate called without an active exception"). Waiting gives them the lock.
    """
    time.sleep(_GLOO_WAIT_S)

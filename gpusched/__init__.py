"""gpusched: deadline-aware multi-GPU hyperparameter search on one workstation.

A training script needs its trial, and ``Trial`` for annotations; a program that uses the best model needs ``load``::

    from gpusched import trial  # or, with defaults or in_charge: trial = gpusched.init(...)

    best = gpusched.load("runs/train-20260101-120000")
    net.load_state_dict(best.state["model"])

Importing gpusched costs nothing: torch and all else is loaded when ``trial``, ``init`` or ``load`` needs them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusched.daemon.best_model import Best
    from gpusched.worker.state import Pickled
    from gpusched.worker.trial import Trial

    trial: Trial

if "--multiprocessing-fork" in sys.orig_argv and os.environ.get("GPUSCHED_DIR"):
    # A script that spawns its ranks: they would wait for a store that the agent serves elsewhere, and never come to
    # ``init()``, which refuses them.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"

__version__ = "0.1.0"
__all__ = ["Trial", "__version__", "init", "load", "pickled"]


def __getattr__(name: str) -> Any:
    """Return a name that scripts import: ``trial``, ready as by ``init()``; the type ``Trial``; an integration."""
    if name == "trial":
        return init()
    if name in ("accelerate", "lightning", "transformers"):
        import importlib

        return importlib.import_module(f"gpusched.{name}")
    if name == "Trial":
        from gpusched.worker.trial import Trial

        return Trial
    raise AttributeError(f"module 'gpusched' has no attribute '{name}'")


def init(defaults: Mapping[str, object] | None = None, *, in_charge: bool = False) -> Trial:
    """Join the trial that this process is a rank of; called once, near the top of a training script.

    Works under ``gpusched run``, under plain ``torchrun`` and alone: ``python train.py --lr 0.1 --opt.momentum 0.9``,
    where ``--seed N`` seeds training and ``--max-steps N`` ends it. A recipe's ``batch`` and ``lr_scaling`` hold in a
    search alone. The ranks talk over a process group of gpusched's own. On several ranks torch's default group is made
    here, unless the script has made it before, with the backend it likes; afterwards write
    ``if not dist.is_initialized():`` first.

    In a process that a rank has started (a DataLoader worker that imports the script anew) the trial can be read, and
    neither reports nor saves.

    Args:
        defaults: Values of hyperparameters that neither the recipe nor the command line gives, nested if need be. The
            defaults also set the types of the command line's values.
        in_charge: The script (or its trainer) ends by itself: ``trial.report`` never raises ``SystemExit``, and the
            script asks ``trial.should_yield()`` after each report and leaves when that is True.

    Raises:
        SystemExit: The command line or the experiment's folder is wrong; the reason was printed.
        RuntimeError: The script spawns its ranks itself (``mp.spawn``); the message says what to write instead.
    """
    from gpusched.worker.start import start

    return start(defaults, in_charge=in_charge)


def load(experiment: str | os.PathLike[str] | None = None) -> Best:
    """Load the best model of a search, which may still be running, verified against its hashes.

    Args:
        experiment: A folder, a name, or None for the newest in ``runs/`` (``GPUSCHED_RUNS``).

    Raises:
        InputError: The search does not exist.
        NoTrialSucceeded: No trial has saved a model yet.
        DamagedState: The best model is not what was written.
    """
    from gpusched.daemon import best_model as result

    return result.load(experiment)


def pickled(value: Any) -> Pickled:
    """Make an object without ``state_dict`` trackable: ``trial.track(clf=gpusched.pickled(clf))``.

    The object's attributes are pickled into the checkpoint and put back in place; a tracked object to which they refer
    stays that of the launch. Reading a pickle can run any code: only one that this trial has written, and that matches
    its SHA-256, is read. Models, optimizers and other objects with ``state_dict`` need no pickle.

    Raises:
        TypeError: The object's state is not in attributes (a list, a tensor): make it an attribute of another object.
    """
    from gpusched.worker.state import Pickled

    return Pickled(value)

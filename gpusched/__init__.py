"""gpusched: deadline-aware multi-GPU hyperparameter search on one workstation.

A training script needs one name of this package, whoever uses the model that was found another::

    trial = gpusched.init()

    best = gpusched.load("runs/train-20260101-120000")
    net.load_state_dict(best.state["model"])

Importing it costs nothing: torch and everything else is loaded when ``init`` or ``load`` is called and needs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.daemon.best_model import Best
    from gpusched.worker.trial import Trial

__version__ = "0.1.0"
__all__ = ["__version__", "init", "load"]


def init(defaults: Mapping[str, object] | None = None) -> Trial:
    """Join the trial this process is a rank of; called once, near the top of a training script.

    Works under ``gpusched run``, under plain ``torchrun`` and alone (``python train.py --lr 0.1 --opt.momentum 0.9``).
    Where torchrun made several ranks, their process group is joined; a group the script has joined already is used.

    Args:
        defaults: Values of hyperparameters that neither the recipe nor the command line gives, nested if need be. They
            also say which types the command line's values must have.

    Raises:
        SystemExit: The command line or the experiment's folder is wrong; the reason was printed.
    """
    from gpusched.worker.start import start

    return start(defaults)


def load(experiment: str | os.PathLike[str] | None = None) -> Best:
    """The best model of an experiment: ``state`` (what ``track`` was given, by name), ``hparams``, ``value``, ``step``.

    Args:
        experiment: A folder, a name, or None for the newest in ``runs/``. It may still be running.

    Raises:
        GpuschedError: There is no such experiment, no model yet, or the model on disk is damaged.
    """
    from gpusched.daemon import best_model as result

    return result.load(experiment)

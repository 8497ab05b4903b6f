"""gpusched: deadline-aware multi-GPU hyperparameter search on one workstation.

A training script needs one name of this package::

    import gpusched

    trial = gpusched.init()

Importing it costs nothing: torch and everything else is loaded when ``init`` is called and needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.worker.trial import Trial

__version__ = "0.1.0"
__all__ = ["__version__", "init"]


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

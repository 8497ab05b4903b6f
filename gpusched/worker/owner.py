"""A trial whose trainer owns the loop: what ``gpusched.lightning`` and ``gpusched.transformers`` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusched

if TYPE_CHECKING:
    from gpusched.worker.trial import Trial


class Owner:
    """A trial whose trainer ends by itself, and whether it is to leave."""

    def __init__(self, trial: Trial | None = None) -> None:
        self._trial = trial or gpusched.init()
        self._trial.take_charge()
        self._is_asked = False
        #: Whether the search has this trial leave: end the script after training, without a test or an export.
        self.is_leaving = False

    @property
    def trial(self) -> Trial:
        """The trial: ``hparams``, ``local_batch``, ``folder``."""
        return self._trial

    def _restored(self, name: str, *, keeps_generators: bool = False) -> Path | None:
        """Return a path in the checkpoint to continue from, which the script has asked for; None for a new trial.

        ``keeps_generators``: the trainer restores them itself, and seeds its samplers alike on every rank by them.
        """
        self._is_asked = True
        trial = self._trial
        folder = trial.restored_files() if keeps_generators else trial.restored_dir
        return None if folder is None else folder / name

"""Checks at a report: does this script train a model that may be ranked? What is wrong is refused, or told.

``usage.py`` knows what is wrong and words it; here it is decided when that is an error (the launch goes on from a
checkpoint that lacks something, or on other ranks than it was written by) and when it is only told, once.
"""

from __future__ import annotations

from collections.abc import Callable

from gpusched.worker.checkpoint import Restorable
from gpusched.worker.context import Context
from gpusched.worker.errorfile import say
from gpusched.worker.group import Group
from gpusched.worker.leaving import Leaving
from gpusched.worker.training import Training
from gpusched.worker.usage import unwrapped


class Checks:
    """Checks of one rank. ``remark`` tells the search, ``say`` the trial's log alone."""

    def __init__(
        self,
        context: Context,
        group: Group,
        training: Training,
        leaving: Leaving,
        remark: Callable[[str], None],
    ) -> None:
        self._context, self._group, self._training = context, group, training
        self._leaving, self._remark = leaving, remark
        self._found: Restorable | None = None
        self._told: set[str] = set()

    def goes_on_from(self, found: Restorable | None) -> None:
        """Remember the checkpoint that this launch goes on from."""
        self._found = found

    def at_first_report(self, step: int) -> None:
        """Check what was set up, before step ``step + 1`` is reported. All ranks call it.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        training, usage = self._training, self._training.usage
        is_kept = bool(training.tracked) or self._leaving.writes_files
        if self._context.scheduled and not is_kept:
            wrong = usage.untracked()
            if wrong is None and step > 0 and not usage.tracks:
                wrong = usage.stateless(step, resumed=True)
            if wrong is not None:
                raise RuntimeError(wrong)
        self._leaving.has_state = is_kept or usage.tracks
        if (apart := unwrapped(self._group, training.tracked.values())) is not None:
            raise RuntimeError(apart)
        if self._group.rank == 0 and (uneven := usage.uneven(self._group.world_size)):
            say(uneven)

    def at_every_report(self) -> None:
        """Check how the script has trained since the last report.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        training = self._training
        if not training.keeps_global_batch and (
            complaint := training.usage.step_scheduler(training.tracked)
        ):
            ranks = self._group.world_size
            resized = self._found is not None and self._found.facts["world_size"] != ranks
            self._refuse_or_tell("schedule", complaint, resized, say)
        if self._context.scheduled and not self._leaving.writes_files:
            lacks = training.lacks or training.forgotten()
            if lacks is not None:
                self._refuse_or_tell("state", lacks, self._found is not None, self._remark)

    def _refuse_or_tell(
        self, about: str, wrong: str, is_error: bool, tell: Callable[[str], None]
    ) -> None:
        if is_error:
            raise RuntimeError(wrong)
        if self._group.rank == 0 and about not in self._told:
            tell(wrong)
        self._told.add(about)

"""The part of a recipe that the core needs, and the version of the decision rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Version of the decision rules. A mended rule would let an older journal diverge, so the resolved recipe records the
#: version that the experiment began with (``rules_version``; none: 1), and a resumed experiment keeps it.
#:
#: 1   as first written, and where nothing is recorded
#: 2   ``hypersched`` deals atoms out in allowed sizes; ``pop`` and ``hermes`` preempt only for trials that get no atom
#:     from those that leave already; ``pop`` tells two outstanding forecasts of a trial apart; a profile without a
#:     measurement on one atom is relative to its smallest size.
#: 3   a trial that fails on more atoms before it reports goes back to the atoms it trained on; running trials are saved
#:     every ``save_every_s``; ``cooldown`` and the time of a step count the steps that a report says, not reports.
#: 4   ``pop`` and ``hermes`` make room for as many new configurations as the sequence still has.
#: 5   a report that passes a rung, or a policy's boundary ``b``, without standing on it is judged there; the first
#:     report of a launch counts its steps from the checkpoint.
#: 6   a trial that leaves because the search ends saves its step, so that a search that goes on loses nothing of it.
#: 7   a trial whose save was refused is asked again after ``SAVE_RETRY_S``, not after another ``save_every_s``.
#: 8   ``pop`` aims at the recipe's target, judges a trial's present metric by the kill threshold, and limits the
#:     configurations in all; without a limit it gives slots to new and suspended ones alternately. The worst trials
#:     make room for one that ran out of memory and waits for more atoms; where they cannot, free atoms are not kept for
#:     it.
#: 9   a search that a person stops waits for each trial's next report, so that nothing since its checkpoint is lost.
RULES_VERSION = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Fixed for the life of an experiment, but for the limits that a person may move. Times since it began."""

    deadline_s: float
    version: int = RULES_VERSION
    mode: str = "max"
    #: Most atoms a trial may have, and the numbers it may have (empty: any).
    max_atoms: int | None = None
    sizes: tuple[int, ...] = ()
    #: Whether a trial stays on one island (the nodes of a cluster); else it is only preferred.
    islands_apart: bool = False
    #: A trial's batch is split over its atoms (``batch: global``): on more of them the share of each is smaller.
    splits_batch: bool = False
    scaling: str | Mapping[int, float] = "auto"
    max_trials: int | None = None
    #: A metric that is good enough: the search is over when a trial reports it (policies that aim at one see to it).
    target: float | None = None
    #: Reports of a trial in a row that must reach it.
    target_for: int = 1
    #: The experiment ends when this many trials failed before any reported.
    max_failures: int = 3
    #: Relaunches of a trial without progress in between, after faults that were not its own.
    max_infrastructure_faults: int = 3
    #: After the end: how long a trial may take to come to its next report (longer where a person ends the search), and
    #: to die when told to.
    last_call_s: float = 1.5
    kill_grace_s: float = 5.0
    #: Time a launch may take to its first report, and a trial may be silent after it
    #: (None: the larger of 60 s and five of its steps). Not watched if ``watch`` is off (simulations).
    startup_limit_s: float = 600.0
    hang_limit_s: float | None = None
    watch: bool = True
    #: Share of a trial's time that saving better and better checkpoints may cost, and how often at most the best
    #: model on disk is replaced while its trial trains on.
    save_share: float = 0.03
    best_every_s: float = 1.0
    #: Most training time of one trial; None: any.
    trial_limit_s: float | None = None
    #: A running trial is saved at the latest after this much training (None: only what may be the best).
    save_every_s: float | None = 300.0

    #: Factor that turns a metric into a score (more is better); a field, as every report needs it.
    sign: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sign", 1.0 if self.mode == "max" else -1.0)

    def is_reached_by(self, curve: Sequence[tuple[int, float]]) -> bool:
        """Tell whether the last reports of a trial, (step, metric), are good enough to end the search."""
        if self.target is None or len(curve) < self.target_for:
            return False
        least = self.target * self.sign
        return all(metric * self.sign >= least for _, metric in curve[-self.target_for :])

    @property
    def smallest(self) -> int:
        """Least atoms a trial may have."""
        return min(self.sizes) if self.sizes else 1

    def fit(self, atoms: int) -> int:
        """Return the largest allowed size that is at most ``atoms``; the smallest size if all are larger."""
        if self.max_atoms is not None:
            atoms = min(atoms, self.max_atoms)
        if self.sizes:
            return max((size for size in self.sizes if size <= atoms), default=self.smallest)
        return max(1, atoms)

    def next_size(self, atoms: int, most: int) -> int | None:
        """Return twice ``atoms`` or the allowed size next to that, at most ``most``; None where none is larger."""
        larger = self.fit(min(2 * atoms, most))
        if larger <= atoms and self.sizes:
            larger = min((size for size in self.sizes if size > atoms), default=atoms)
        return larger if atoms < larger <= most and self.fit(larger) == larger else None

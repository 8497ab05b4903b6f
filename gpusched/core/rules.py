"""The part of a recipe that the core needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Fixed for the life of a search, but for the limits that a person may move. Times since it began."""

    deadline_s: float
    mode: str = "max"
    #: Most atoms a trial may have, and the numbers it may have (empty: any).
    max_atoms: int | None = None
    sizes: tuple[int, ...] = ()
    #: Whether a trial stays on one island (the nodes of a cluster); else it is only preferred.
    islands_apart: bool = False
    scaling: str | Mapping[int, float] = "auto"
    max_trials: int | None = None
    #: A metric that is good enough: the search is over when a trial reports it (policies that aim at one see to it).
    target: float | None = None
    #: The search ends when this many trials failed before any reported.
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
    #: A running trial is saved at the latest after this much training (None: only what may be the best).
    save_every_s: float | None = 300.0

    #: Factor that turns a metric into a score (more is better); a field, as every report needs it.
    sign: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sign", 1.0 if self.mode == "max" else -1.0)

    def is_reached_by(self, curve: Sequence[tuple[int, float]]) -> bool:
        """Tell whether the last report of a trial, (step, metric), is good enough to end the search."""
        if self.target is None or not curve:
            return False
        return curve[-1][1] * self.sign >= self.target * self.sign

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

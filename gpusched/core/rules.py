"""The part of a recipe that the core needs: its rules, and the configurations that have not started."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Hparams = Mapping[str, object]
#: The n-th configuration of the sequence; None after the last.
Draw = Callable[[int], Hparams | None]


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
    #: Time a launch may take to its first report, and a trial may be silent after it (``silence.py``). Not watched if
    #: ``watch`` is off (simulations).
    startup_limit_s: float = 600.0
    hang_limit_s: float | None = None
    watch: bool = True
    #: Share of a trial's time that saving better and better checkpoints may cost, and how often at most the best
    #: model on disk is replaced while its trial trains on.
    save_share: float = 0.03
    best_every_s: float = 1.0
    #: A running trial is saved at the latest after this much training (None: only what may be the best).
    save_every_s: float | None = 300.0

    #: Factor that turns a metric into a score (more is better), and the least atoms a trial may have: fields, as every
    #: report needs them.
    sign: float = field(init=False, repr=False)
    smallest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sign", 1.0 if self.mode == "max" else -1.0)
        object.__setattr__(self, "smallest", min(self.sizes, default=1))

    def is_reached_by(self, metric: float | None) -> bool:
        """Tell whether the metric that a trial has reported is good enough to end the search."""
        if self.target is None or metric is None:
            return False
        return metric * self.sign >= self.target * self.sign

    def fit(self, atoms: int) -> int:
        """Return the largest allowed size that is at most ``atoms``; the smallest size if all are larger."""
        if self.max_atoms is not None:
            atoms = min(atoms, self.max_atoms)
        if self.sizes:
            return max((size for size in self.sizes if size <= atoms), default=self.smallest)
        return max(1, atoms)


class Configurations:
    """The configurations of one search that have not started; ``max_trials``: most from the sequence (None: any).

    ``draw``: the sequence; None: a sampler with a memory is asked for one configuration after the other.
    """

    def __init__(self, draw: Draw | None) -> None:
        self._draw = draw
        self.learns = draw is None
        #: Trials that have started from the sequence.
        self._started = 0
        #: Configurations that a person asked for.
        self.given: deque[Hparams] = deque()
        #: The answers of a sampler with a memory by their number, and the number it has been asked for.
        self.suggested: dict[int, Hparams | None] = {}
        self.asked_for: int | None = None
        #: The next of the sequence, once it was looked at.
        self._next: Hparams | None = None

    def draw_from(self, draw: Draw) -> None:
        """Take the others from a sequence; a sampler with a memory is asked no more."""
        self._draw, self.learns, self.asked_for = draw, False, None

    def _left(self, max_trials: int | None) -> float:
        return math.inf if max_trials is None else max_trials - self._started

    def has_next(self, max_trials: int | None) -> bool:
        """Tell whether there is another configuration to start."""
        return bool(self.given) or self._has_own(max_trials)

    def _has_own(self, max_trials: int | None) -> bool:
        if self._left(max_trials) <= 0:
            return False
        if self._next is None:
            draw = self.suggested.get if self._draw is None else self._draw
            self._next = draw(self._started)
        return self._next is not None

    def may_have_next(self, max_trials: int | None) -> bool:
        """Tell whether there is another configuration, or a sampler with a memory may suggest one."""
        may_suggest = self.learns and None not in self.suggested.values()
        return (may_suggest and self._left(max_trials) > 0) or self.has_next(max_trials)

    def left(self, max_trials: int | None) -> float:
        """Return the number of those that can still be started, as far as is known."""
        return len(self.given) + (self._left(max_trials) if self._has_own(max_trials) else 0)

    def to_suggest(self, max_trials: int | None) -> int | None:
        """Return the number to ask a sampler with a memory for now, one ahead of the trials; None: none yet."""
        if self.asked_for is not None or self._next is not None:
            return None
        is_due = self._left(max_trials) > 0 and self._started not in self.suggested
        return self._started if is_due else None

    def take(self) -> Hparams:
        """Take the next. The caller has asked ``has_next``."""
        if self.given:
            return self.given.popleft()
        assert self._next is not None
        hparams, self._next = self._next, None
        self._started += 1
        return hparams

"""The other two that share time in Hermes (Electronics'21, 4.1.3). Yardsticks: Hermes with another C.

``round_robin``, as Gandiva does it: every trial's C is 0, and with equal C the one that has waited longest runs.
``slaq``: C is the loss itself, "prioritizing jobs with high loss".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpusched import policies
from gpusched.policies import hermes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(hermes.Options):
    """A quantum of 30 s that does not grow."""

    quantum_s: float = 30.0
    milestones: tuple[float, ...] = ()


class _Job(hermes.Job):
    def end_quantum(self, now_s: float) -> None:
        super().end_quantum(now_s)
        self.speed = 0.0


class RoundRobin(hermes.Hermes):
    name = "round_robin"
    options_type = Options
    kind: type[hermes.Job] = _Job

    def job(self, trial: int) -> hermes.Job:
        if trial not in self._jobs:
            self._jobs[trial] = self.kind(self.options.quantum_s)
        return self._jobs[trial]


class _HighLossFirst(hermes.Job):
    def end_quantum(self, now_s: float) -> None:
        super().end_quantum(now_s)
        self.speed = -math.inf if self._last is None else self._last


class Slaq(RoundRobin):
    name = "slaq"
    kind = _HighLossFirst


policies.REGISTRY = {
    **policies.REGISTRY,
    "round_robin": (__name__, "RoundRobin"),
    "slaq": (__name__, "Slaq"),
}

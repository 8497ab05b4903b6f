"""``round_robin``: time-sharing without preference, as Gandiva does it (Hermes, Electronics'21, 4.1.3). A yardstick.

Hermes with every trial's convergence taken as 0: with equal C the one that has waited longest runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpusched import policies
from gpusched.policies import hermes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(hermes.Options):
    """A quantum of 30 s that does not grow."""

    quantum_s: float = 30.0
    growth: float = 1.0


class _Job(hermes.Job):
    def end_quantum(self, now_s: float) -> None:
        super().end_quantum(now_s)
        self.speed = 0.0


class RoundRobin(hermes.Hermes):
    name = "round_robin"
    options_type = Options

    def job(self, trial: int) -> hermes.Job:
        if trial not in self._jobs:
            self._jobs[trial] = _Job(self.options.quantum_s)
        return self._jobs[trial]


policies.REGISTRY = {**policies.REGISTRY, "round_robin": (__name__, "RoundRobin")}

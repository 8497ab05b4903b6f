"""``hyperband``: brackets of successive halving (HyperSched, SoCC'19, 3.2; Li et al., JMLR 2018, Algorithm 1).

    s_max = floor(log_eta(R / r))
    bracket s = s_max .. 0:  n = ceil((s_max + 1) / (s + 1) * eta^s) trials begin,
                             halving i = 0 .. s:  floor(n / eta^i) trials up to R * eta^(i - s) steps

The first bracket stops most aggressively, the last one trains its trials to R. Brackets follow each other, and after
the last comes the first again. "Hyperband executes SHA in a synchronous fashion": see ``sha``, whose options it shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpusched.policies.halving.bracket import Shape, shrinking
from gpusched.policies.halving.sha import Synchronous


def brackets(r: int, R: int, eta: float) -> Iterator[Shape]:
    """Yield the brackets of one round, the most aggressive first."""
    s_max = int(math.log(R / r, eta) + 1e-9)
    for s in range(s_max, -1, -1):
        first = math.ceil((s_max + 1) / (s + 1) * eta**s - 1e-9)
        steps = tuple(max(1, round(R * eta ** (i - s))) for i in range(s + 1))
        yield Shape(f"bracket s={s}", tuple(shrinking(first, eta, s + 1)), steps)


class Hyperband(Synchronous):
    """All brackets from the most to the least aggressive, again and again."""

    name = "hyperband"

    def _shapes(self) -> Iterator[Shape]:
        options = self.options
        assert options.R is not None
        while True:
            yield from brackets(options.r, options.R, options.eta)

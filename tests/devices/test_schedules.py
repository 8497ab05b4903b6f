"""No process of a launch exists on a device before that device is free: in random searches on scripted GPUs.

A failing seed is in the test's message; ``Schedule(seed, folder).run()`` repeats it exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.schedules import play
from tests.torture.bed import times


def test_random_searches(tmp_path: Path) -> None:
    counts = play(range(18), tmp_path)
    # They are worth something only if all of this happens in them.
    for happening in ("launches", "resizes", "deaths", "daemons", "released", "readmitted"):
        assert counts[happening] >= 6, counts
    for happening in ("quarantined", "mended", "lost by its GPU"):
        assert counts[happening], counts


def test_random_searches_on_shares_of_gpus(tmp_path: Path) -> None:
    counts = play(range(8), tmp_path, shares=2)
    for happening in ("launches", "daemons", "released", "quarantined"):
        assert counts[happening] >= 4, counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shares", [1, 2])
def test_ten_thousand_random_searches(tmp_path: Path, shares: int) -> None:
    counts = play(range(times(10_000)), tmp_path, shares)
    print(dict(counts))
    assert counts["launches"] > times(10_000)

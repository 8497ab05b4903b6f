"""No device is given out while it is not clean, none is lost for good: thousands of random schedules say so.

A failing seed is in the test's message; ``Schedule(seed, folder).run()`` repeats it exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from schedules import Schedule, Shared, play

SHORT, LONG = 20, 10_000


def test_random_schedules(tmp_path: Path) -> None:
    counts = play(Schedule, range(SHORT), tmp_path)
    # The schedules are worth something only if all of this happens in them.
    for happening in ("launches", "released", "timed out", "fault", "recovered", "readmitted"):
        assert counts[happening] >= 4, counts
    assert counts["kept out"], counts


def test_random_schedules_of_shared_gpus(tmp_path: Path) -> None:
    # The last three: a share is given out while the other one drains.
    counts = play(Shared, [*range(4), 1035, 1044, 1077], tmp_path)
    for happening in ("launches", "released", "fault"):
        assert counts[happening] >= 4, counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", [Schedule, Shared])
def test_ten_thousand_random_schedules(kind: type[Schedule], tmp_path: Path) -> None:
    counts = play(kind, range(SHORT, SHORT + LONG), tmp_path)
    print(dict(counts))
    assert counts["released"] > LONG

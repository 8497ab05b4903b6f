"""Random schedules of scripted GPUs, by themselves (``schedules.py``) and under whole experiments (``whole.py``).

A failing seed is in the test's message; ``Schedule(seed, folder).run()`` repeats it exactly, as does ``Whole``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.schedules import Schedule, Shared, play
from tests.devices.whole import Whole
from tests.torture.bed import times


def test_whole_experiments_on_scripted_gpus(tmp_path: Path) -> None:
    counts = play(Whole, range(12), tmp_path)
    # They are worth something only if all of this happens in them.
    for happening in ("launches", "reports", "released", "quarantined", "readmitted"):
        assert counts[happening] >= 5, counts
    assert counts["mended"], counts
    assert counts["lost by its GPU"], counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_experiments_on_scripted_gpus(tmp_path: Path) -> None:
    counts = play(Whole, range(times(10_000)), tmp_path)
    print(dict(counts))
    assert counts["launches"] > times(10_000)


# ---------------------------------------------------------------- devices alone


SHORT, LONG = 20, 2_000


def test_random_schedules(tmp_path: Path) -> None:
    counts = play(Schedule, range(SHORT), tmp_path)
    # The schedules are worth something only if all of this happens in them.
    for happening in ("launches", "released", "timed out", "fault", "recovered"):
        assert counts[happening] >= 4, counts


def test_random_schedules_of_shared_gpus(tmp_path: Path) -> None:
    counts = play(Shared, range(7), tmp_path)
    for happening in ("launches", "released", "fault"):
        assert counts[happening] >= 4, counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", [Schedule, Shared])
def test_thousands_of_random_schedules(kind: type[Schedule], tmp_path: Path) -> None:
    counts = play(kind, range(SHORT, SHORT + LONG), tmp_path)
    print(dict(counts))
    assert counts["released"] > LONG

"""Whole experiments on scripted GPUs: nothing is launched on an unclean one, nothing stalls (``whole.py``).

A failing seed is in the test's message; ``Whole(seed, folder).run()`` repeats it exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from schedules import play
from whole import Whole

from tests.torture.bed import times

REGRESSIONS = (31, 107, 868, 936, 2429, 5133, 5337)
"""Seeds that found something. 31: a fatal XID was forgotten that came while its GPU was asked back. 107: two people
asked for one GPU, and the second got it from under a trial. 868: a trial was moved to a GPU of which was known in the
same second that a stranger had come, and (2429) to a slice that had just gone bad itself. 936: a GPU was lost while it
drained, and asked back within the minute; the old wait for its release then took its next trial for the last one.
5133: while one GPU was lost and another hung, nobody heard the third. 5337: the only GPU was lost, and when it was back
nobody heard it any more."""


def test_whole_experiments_on_scripted_gpus(tmp_path: Path) -> None:
    counts = play(Whole, [*range(4), *REGRESSIONS], tmp_path)
    # They are worth something only if all of this happens in them.
    for happening in ("launches", "reports", "released", "quarantined", "readmitted"):
        assert counts[happening] >= 5, counts
    assert counts["asked back"], counts
    assert counts["lost by its GPU"], counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_experiments_on_scripted_gpus(tmp_path: Path) -> None:
    counts = play(Whole, range(times(10_000)), tmp_path)
    print(dict(counts))
    assert counts["launches"] > times(10_000)

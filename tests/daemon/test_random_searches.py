"""Random searches through the daemon's parts: what lives and what is replayed are the same, field by field."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.daemon.searches import play
from tests.helpers import snapshot


def played(seeds: range, folder: Path) -> Counter[str]:
    found = Counter[str]()
    for seed in seeds:
        own = folder / str(seed)
        own.mkdir()
        search = play(seed, own)
        if seed % 25 == 0:
            (own / "again").mkdir()
            again = play(seed, own / "again")
            assert snapshot(again.experiment) == snapshot(search.experiment), f"seed {seed}"
        found["daemons"] += search.epoch
        found["reopened"] += search.reopened
        found["trials"] += len(search.experiment.state.trials)
        found["asked"] += search.asked
    return found


@pytest.mark.parametrize("part", range(4))
def test_searches_of_any_kind_are_replayed_as_they_lived(part: int, folder: Path) -> None:
    found = played(range(50 * part, 50 * part + 50), folder)
    assert found["daemons"] > 100
    assert found["reopened"] > 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))
def test_ten_thousand_searches(part: int, folder: Path) -> None:
    played(range(1000 + 500 * part, 1500 + 500 * part), folder)

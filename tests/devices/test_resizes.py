"""No process of a launch exists on a device before that device is free: by real daemons, and in seeded schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.devices.boxed import Boxed
from tests.devices.resizes import WALK, Resizes
from tests.devices.schedules import play
from tests.torture.bed import times

#: Seeds that found something. 4: what a dead trial had left on its GPU was taken for the idle state by the next
#: daemon. 48: of two devices that were bad at a resume the second was told of after a launch on it.
#: 145: a stranger came in the turn in which its GPU was given out, and the launch was ended, as it must be.


def test_every_launch_of_a_trial_that_is_resized_comes_after_the_release(tmp_path: Path) -> None:
    """The first line of each rank looks whether the driver has let go: 1 -> 2 -> 1 -> 2 -> 1 -> 2."""
    tmp_path.chmod(0o700)
    box = Boxed(tmp_path, {}, {})
    try:
        policy = {"name": f"{WALK}:Walk", "R": 12}
        box.runs_to_its_end("walk", max_trials=1, policy=policy)
        launches: dict[int, list[str]] = {}
        for rank in box.ranks():
            launches.setdefault(rank["launch"], []).append(rank["CUDA_VISIBLE_DEVICES"])
        sizes = [len(launches[number]) for number in sorted(launches)]
        assert sizes == [1, 2, 1, 2, 1, 2]
        assert not (box.box / "collision").exists()
        rows = [json.loads(row) for row in box.asks("export", "walk", "--json").out.splitlines()]
        assert [row["atoms"] for row in rows] == [1, 1, 2, 2] * 3
    finally:
        box.end()


def test_resizes_of_one_trial(tmp_path: Path) -> None:
    counts = play(Resizes, [*range(8), 48, 145, 3246], tmp_path)
    for happening in ("launches", "resizes", "deaths", "daemons", "released", "readmitted"):
        assert counts[happening] >= 6, counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_trials_that_are_resized(tmp_path: Path) -> None:
    counts = play(Resizes, range(times(10_000)), tmp_path)
    print(dict(counts))
    assert counts["resizes"] > times(10_000)

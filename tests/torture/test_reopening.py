"""A search that is over goes on, and its daemon is killed while that begins: nothing is lost, and it goes on once."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched.core.events import LimitsMoved
from tests.rig import wait_until
from tests.torture.bed import Bed, MakeBed
from tests.torture.test_other_failpoints import require_whole_best

WISH = {"add_s": 3600.0}
#: From the decision to the first launch. The first sync is of the daemon that takes over, the second of the event.
POINTS = (
    *("final.removed", "journal.before:2", "journal.inserted:2", "journal.synced:2"),
    *("Launch.before", "Launch.after", "Launch.before:2"),
)


def ended(make_bed: MakeBed) -> Bed:
    """A search of two trials that a person has stopped; both left a checkpoint."""
    bed = make_bed(
        devices="cpu:2",
        max_trials=2,
        space={"x": {"uniform": [0, 1]}, "step_s": 0.05},
        policy={"name": "fifo", "R": 100_000},
    )
    bed.begin(reports=6)
    bed.finish()
    assert bed.paths.final_view.is_file()
    return bed


def go_on(bed: Bed, failpoint: str) -> None:
    """Killed at this point, and resumed by a person who sees that and tries again."""
    before = {number: len(bed.lines(number)) for number in bed.numbers()}
    assert bed.start(resume=True, wish=WISH, failpoint=failpoint) is None
    assert bed.wait_for_death() == -9, f"{failpoint} was not reached\n{bed.log()}"
    require_whole_best(bed)
    again = bed.check().state
    bed.resume(wish=WISH if again.finished else None)
    wait_until(
        lambda: all(len(bed.lines(number)) > count for number, count in before.items()),
        f"both trials to train on\n{bed.log()}",
    )
    bed.check_one_incarnation_each()
    require_whole_best(bed)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", POINTS)
def test_killed_at_every_point_of_going_on(make_bed: MakeBed, failpoint: str) -> None:
    bed = ended(make_bed)
    shut_down_at = bed.check().state.now
    go_on(bed, failpoint)
    left: Any = bed.view()["time_left_s"]
    assert left > 3600, "time shut down does not count"
    again = bed.finish()
    assert sum(type(entry.event) is LimitsMoved for entry in bed.entries()) == 1
    assert again.state.now < shut_down_at + 60
    for trial in again.state.trials.values():
        assert trial.step == len(bed.lines(trial.id)), "it went on from its last step"

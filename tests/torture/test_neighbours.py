"""One bad trial beside seven good ones: their curves and their fate are what they would have been without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpusched.core.events import Reported
from gpusched.core.trial import TrialState
from tests.rig import wait_until
from tests.torture.bed import SCRIPTS, Bed, MakeBed, times

STEPS = 30
#: How the bad one must end; None: any way, as long as it says why.
FATE = {
    "nan": TrialState.COMPLETED,
    "hang": None,
    "flood": TrialState.COMPLETED,
    "memory": None,
    "segments": TrialState.FAILED,
    "forks": TrialState.COMPLETED,
}


def run_beside(make_bed: MakeBed, fault: str, **more: Any) -> Bed:
    bed = make_bed(
        script=str(SCRIPTS / "neighbours.py"),
        devices="cpu:8",
        max_trials=8,
        policy={"name": "fifo", "R": STEPS},
        space={"x": {"uniform": [0, 1]}, "step_s": 0.1, "fault": fault, "size_mib": 64, **more},
        hang_limit="3s",
        grace="1s",
    )
    bed.begin()
    wait_until(lambda: all(len(bed.lines(n)) >= STEPS for n in range(1, 8)), "the good ones")
    if fault == "hang":
        wait_until(lambda: "is stuck at" in bed.log(), "the watch")
        bed.ask("stop_trial", trial=0)
    status = bed.wait_for_death(150)
    if status is None:
        bed.ask("cancel")
        status = bed.wait_for_death(60)
    assert status == 0, bed.log()
    return bed


def check_good_ones(bed: Bed) -> None:
    again = bed.check()
    curves: dict[int, list[float | None]] = {}
    for entry in bed.entries():
        if isinstance(entry.event, Reported):
            curves.setdefault(entry.event.trial, []).append(entry.event.metric)
    for number in range(1, 8):
        trial = again.state.trials[number]
        x: Any = trial.hparams["x"]
        assert trial.state is TrialState.COMPLETED
        assert trial.incarnation == 1
        assert curves[number] == [x * (1.0 - 0.97**step) for step in range(1, STEPS + 1)]
    assert again.state.best.metric == max(c for n in range(8) for c in curves[n] if c == c and c)


def check_the_bad_one(bed: Bed, fault: str) -> None:
    trial = bed.check().state.trials[0]
    assert trial.is_final
    assert FATE[fault] in (None, trial.state), (trial.state, trial.error)
    if trial.state is TrialState.FAILED:
        assert trial.error
    assert not list(Path("/dev/shm").glob(f"torch_*_{fault}_*"))


@pytest.mark.slow
def test_a_trial_of_nothing_but_nan(make_bed: MakeBed) -> None:
    bed = run_beside(make_bed, "nan")
    check_good_ones(bed)
    check_the_bad_one(bed, "nan")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [name for name in FATE if name != "nan"])
def test_a_bad_trial_harms_nobody(make_bed: MakeBed, fault: str) -> None:
    before = {path.name for path in Path("/dev/shm").glob("torch_*")}
    size_mib = times(1024) // (STEPS - 2) if fault == "flood" else 256
    bed = run_beside(make_bed, fault, size_mib=size_mib)
    check_good_ones(bed)
    check_the_bad_one(bed, fault)
    assert {path.name for path in Path("/dev/shm").glob("torch_*")} <= before, "leaked segments"
    logs = sum(f.stat().st_blocks * 512 for f in bed.paths.trial(0).logs(1).iterdir())
    print(f"{fault}: the bad one's logs take {logs >> 20} MiB on disk")
    assert logs < 64 << 20

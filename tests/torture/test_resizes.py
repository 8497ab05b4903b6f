"""A trial that is resized for ever: its daemon and its shims are killed at random, and no step is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from gpusched.core.commands import Launch
from gpusched.core.events import Reported, TrialExited
from gpusched.policies.rehearsal import WALK
from tests.torture.bed import SCRIPTS, Bed, times

KEYS = {
    "script": str(SCRIPTS / "carry.py"),
    "devices": "cpu:3",
    "max_trials": 1,
    "max_failures": 1_000_000,
    "space": {"step_s": 0.03},
    "policy": {"name": WALK, "sizes": [1, 2, 3, 2] * 500, "steps": 3},
}


def kill_something(bed: Bed, rng: random.Random) -> str:
    """The daemon, or a shim: of the incarnation that trains, or of the one that waits."""
    shims = [bed.shim_of(*who) for who in bed.processes() if who[0] >= 0]
    pids = [shim["pid"] for shim in shims if shim is not None and shim["pid"]]
    if rng.random() < 0.5 or not pids:
        bed.kill()
        bed.resume()
        return "daemon"
    with suppress(ProcessLookupError):
        os.kill(rng.choice(pids), signal.SIGKILL)
    return "shim"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(times(2)))
def test_killed_at_random_instants_of_resizes(make_bed: Callable[..., Bed], seed: int) -> None:
    rng = random.Random(seed)
    bed = make_bed(**KEYS)
    bed.begin(reports=10)
    killed = []
    for _ in range(40):
        time.sleep(rng.uniform(0.05, 1.0))
        killed.append(kill_something(bed, rng))
        # Three deaths without a step in between would be the trial's own end.
        if len(killed) % 2 == 0:
            bed.wait_for_reports(8)
    bed.wait_for_reports(20)
    bed.finish()
    assert not bed.paths.trial(0).waits.exists()
    resizes = no_step_is_lost(bed)
    assert resizes > 20
    print(f"{killed.count('daemon')} daemons, {killed.count('shim')} shims, {resizes} resizes")


def no_step_is_lost(bed: Bed) -> int:
    """Every report counts as many steps as its state has seen, and what was committed by one that left is gone on
    from. How many resizes there were."""
    left_at, resizes, size = 0, 0, 1
    incarnation = 1
    for entry in bed.entries():
        event = entry.event
        if isinstance(event, Reported):
            assert event.metric == float(event.step), "a step was lost, or done twice"
            if event.incarnation != incarnation:
                assert not left_at or event.step == left_at + 1
                incarnation, left_at = event.incarnation, 0
        elif isinstance(event, TrialExited):
            left_at = event.saved_step or 0
        for command in entry.commands:
            if isinstance(command, Launch):
                resizes += len(command.devices) != size
                size = len(command.devices)
    return resizes

"""The daemon is killed at every failpoint, then at random instants under load, and resumed (reliability T1, T2)."""

from __future__ import annotations

import json
import random
import time

import pytest

from gpusched import failpoints
from tests.rig import PATIENCE_S, wait_until
from tests.torture.bed import Bed, MakeBed, count, percentile, times
from tests.torture.failpoints import DAEMON

#: Passed only at an end, or where a journal is made.
AT_THE_END = ("final.before", "final.after", "final.removed")
SELDOM = ("epoch", "resume", "Save", "KeepBest", "best")
"""Once in the life of a daemon, or when there is a new best model and saving has not cost too much lately."""
NEVER_ALONE = ("Kill.before", "Kill.after")
"""Commands that need somebody to ask for them."""


def stir(bed: Bed, rng: random.Random) -> None:
    """Ask for something, so that commands of all kinds are about."""
    known = bed.numbers()
    if not known:
        return
    trial = rng.choice(known[-8:])
    bed.ask(rng.choice(["pause", "unpause", "unpause"]), trial=trial)


def die_at(bed: Bed, name: str, rng: random.Random, most: int = 3) -> bool:
    """A daemon takes over from the last one and dies at this point. False if it never got there."""
    passes = 1 if name.startswith(SELDOM) else rng.choice([1, min(2, most), most])
    if name.startswith("best"):
        bed.paths.best.unlink(missing_ok=True)  # then a daemon that resumes makes it again
    bed.resume(failpoint=f"{name}:{passes}")
    assert bed.daemon is not None
    until = time.monotonic() + PATIENCE_S
    while bed.daemon.poll() is None and time.monotonic() < until:
        stir(bed, rng)
        if name in NEVER_ALONE:
            live = [trial for trial, _ in bed.processes() if trial >= 0]
            bed.ask("stop_trial", trial=rng.choice(live)) if live else None
        time.sleep(0.03)
    died = bed.daemon.poll() == -9
    if not died:
        bed.kill()
    return died


def kill_at_points(make_bed: MakeBed, names: tuple[str, ...], seed: int, most: int = 3) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    bed = make_bed(devices="cpu:4", space={"x": {"uniform": [0, 1]}, "step_s": 0.05})
    bed.begin(reports=10)
    bed.kill()
    missed = [name for name in names if not die_at(bed, name, rng, most)]
    bed.resume()
    bed.wait_for_reports(5)
    bed.finish()
    print(f"{len(names)} points, {len(missed)} not reached: {missed}")
    assert len(missed) <= len(names) // 8, missed


def test_killed_at_some_failpoints(make_bed: MakeBed) -> None:
    names = (
        "epoch.file",
        "resume.reconciled",
        "journal.inserted",
        "journal.synced",
        "Launch.before",
    )
    kill_at_points(make_bed, names, seed=1, most=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(times(2)))
def test_killed_at_every_failpoint(make_bed: MakeBed, seed: int) -> None:
    names = tuple(name for name in DAEMON if name not in AT_THE_END)
    kill_at_points(make_bed, names, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["epoch.before", "epoch.file", "journal.before", "journal.synced"])
def test_killed_before_it_has_begun(make_bed: MakeBed, name: str) -> None:
    """A journal without a beginning is no reason to wait for ever."""
    bed = make_bed()
    assert bed.start(failpoint=name) is None
    assert bed.wait_for_death() == -9
    if not bed.paths.journal.exists():
        return  # nothing has begun: 'gpusched run' starts another
    bed.resume()
    bed.wait_for_reports(10)
    bed.finish()


@pytest.mark.parametrize(
    "name", ["final.before", pytest.param("final.after", marks=pytest.mark.slow)]
)
def test_killed_between_the_last_record_and_its_effects(make_bed: MakeBed, name: str) -> None:
    """The search is over in the journal; ``resume`` says so, and does what was left to do."""
    bed = make_bed(devices="cpu:2", max_trials=2, policy={"name": "fifo", "R": 5})
    assert "ok" in bed.start(failpoint=name)
    assert bed.wait_for_death() == -9
    if name == "final.before":
        bed.paths.best.unlink()  # as if the last KeepBest had not been carried out either
    answer = bed.start(resume=True)
    assert bed.wait_for_death() == 2
    assert "is over" in answer["error"]
    again = bed.check_end()
    assert bed.paths.final_view.is_file()
    kept = json.loads((bed.paths.best / "metric.json").read_text())
    assert (kept["trial"], kept["step"]) == (again.state.best.trial, again.state.best.step)


def random_kills(make_bed: MakeBed, kills: int, seed: int, **keys: object) -> None:
    print(f"seed {seed}")
    rng, segments = random.Random(seed), count("/dev/shm")
    bed = make_bed(**keys)
    bed.begin()
    wait_until(lambda: len(bed.numbers()) >= 4 and bed.reports() > 20, "some trials to train")
    began, reports = time.monotonic(), bed.reports()
    for number in range(kills):
        until = time.monotonic() + lifetime_s(rng)
        while time.monotonic() < until:
            if rng.random() < 0.02:
                stir(bed, rng)
            time.sleep(0.02)
        bed.kill()
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.5)
        bed.resume()
        if number % 25 == 24:
            bed.check_one_incarnation_each()
    rate = (bed.reports() - reports) / (time.monotonic() - began)
    bed.finish()
    assert count("/dev/shm") <= segments, "no segment left"
    assert not [*bed.paths.trials.rglob(".*.tmp")], "no file left half written"
    print(
        f"{kills} kills, {bed.reports()} reports ({rate:.0f}/s); back to serving "
        f"median {percentile(bed.resumed_s, 0.5):.2f} s, p99 {percentile(bed.resumed_s, 0.99):.2f} s"
    )


def lifetime_s(rng: random.Random) -> float:
    """Of a daemon. Most die while those that were there before come back, some while what they began is half done."""
    return rng.uniform(0.05, 0.8) if rng.random() < 0.9 else rng.uniform(1.0, 6.0)


LOAD = {
    "devices": "cpu:22",
    "max_atoms": 2,
    "max_trials": 40,
    "scaling": "linear",
    "space": {"x": {"uniform": [0, 1]}, "step_s": 0.08},
    "policy": {"name": "hypersched", "r": 120, "R": 100_000, "eta": 3, "cooldown": 10},
}
"""Sixteen and more trials at once, pauses at the rungs and by hand; what becomes free goes to the best."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(times(20)))
def test_killed_at_random_instants_under_load(make_bed: MakeBed, seed: int) -> None:
    """Fifty a seed: a thousand. After hundreds in one experiment most trials would be over."""
    random_kills(make_bed, 50, seed, **LOAD)


def test_what_a_failpoint_is_armed_with() -> None:
    with pytest.raises(ValueError, match="x"):
        failpoints.arm("journal.before:x")
    failpoints.arm("journal.before:2")("journal.before")  # once is not twice
    failpoints.reach("journal.before")  # not armed: nothing happens

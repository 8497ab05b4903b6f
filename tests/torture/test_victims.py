"""Shim, rank 0, rank k, and the server that forks them, killed or stopped in every state of a trial (reliability T8).

What must follow, whoever is hit and whenever: the trial goes on (relaunched from its checkpoint) or has failed and says
why; the others do not notice; no process is left; the journal replays and holds every report.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpusched.processes.identity import Identity, read_file, send_signal, start_time
from tests.rig import wait_until
from tests.torture.bed import Bed, MakeBed, times

FINAL = ("completed", "stopped", "failed")
STATES = ("starting", "yielding", "stopping", "running")
"""Transitional ones first."""
VICTIMS = ("shim", "rank 0", "rank 1", "server")
"""Processes of a warm launch; torchrun's agent is in the shim."""
BIRTH_S = 5.0
"""Time to wait for a rank of a trial that starts, which is hit as soon as it is there."""
COLD_VICTIMS = ("shim", "agent", "rank 0", "rank 1")


def trial_of(bed: Bed, number: int) -> dict[str, Any]:
    return next(trial for trial in bed.view()["trials"] if trial["id"] == number)


def live(bed: Bed) -> list[int]:
    """Trials that train: they have reported in their present incarnation."""
    return [
        trial["id"]
        for trial in bed.view()["trials"]
        if trial["state"] == "running"
        and any(line["i"] == trial["incarnation"] for line in bed.lines(trial["id"])[-1:])
    ]


def has_left(bed: Bed, number: int, incarnation: int) -> bool:
    trial = trial_of(bed, number)
    return trial["state"] in FINAL or trial["incarnation"] > incarnation


def has_been_ended(bed: Bed, number: int, incarnation: int) -> bool:
    return has_left(bed, number, incarnation) or trial_of(bed, number)["state"] == "paused"


def bring_to(bed: Bed, number: int, state: str) -> int:
    """Bring a running trial to this state; its incarnation then. The state may have passed when this returns."""
    incarnation = int(trial_of(bed, number)["incarnation"])
    if state == "yielding":
        bed.ask("pause", trial=number)
    elif state == "stopping":
        bed.ask("stop_trial", trial=number)
    elif state == "starting":
        (shim,) = pids_of(bed, number, incarnation, "shim")
        assert send_signal(Identity(shim, start_time(shim) or 0), signal.SIGKILL)
        incarnation += 1
        # Hit too often without progress it has failed instead.
        wait_until(
            lambda: bed.shim_of(number, incarnation) or trial_of(bed, number)["state"] in FINAL,
            "a launch",
        )
    return incarnation


def pids_of(bed: Bed, number: int, incarnation: int, victim: str) -> Iterator[int]:
    claim = bed.shim_of(number, incarnation) or {}
    if victim == "shim":
        yield from claim["shim"][:1] if claim.get("shim") else []
    elif victim == "server":
        yield from bed.processes().get((-1, -1), ())
    elif bed.keys.get("launch") == "cold":
        yield from _of_torchrun(bed, number, incarnation, claim, victim)
    else:
        ranks = claim.get("ranks") or []
        index = int(victim.split()[1])
        yield from [ranks[index][0]] if len(ranks) > index else []


def _of_torchrun(
    bed: Bed, number: int, incarnation: int, claim: dict[str, Any], victim: str
) -> Iterator[int]:
    """torchrun's own process is all that the claim knows; its ranks are told by their variables."""
    if victim == "agent":
        yield from [pid for pid, _ in claim.get("ranks") or []]
        return
    variable = f"LOCAL_RANK={victim.split()[1]}".encode()
    for pid in bed.processes().get((number, incarnation), ()):
        if variable in (read_file(f"/proc/{pid}/environ") or b"").split(b"\0"):
            yield pid


def strike(bed: Bed, state: str, victim: str) -> str:
    """One blow, and everything that must follow. In words, what came of it."""
    target = bring_to_running(bed)
    others = {n: trial_of(bed, n)["incarnation"] for n in live(bed) if n != target}
    incarnation = bring_to(bed, target, state)
    pids = list(pids_of(bed, target, incarnation, victim))
    until = time.monotonic() + BIRTH_S
    while state == "starting" and not pids and time.monotonic() < until:
        pids = list(pids_of(bed, target, incarnation, victim))
    hit = False
    for pid in pids:
        began = start_time(pid)
        hit = (began is not None and send_signal(Identity(pid, began), signal.SIGKILL)) or hit
    ended = has_been_ended if hit and victim != "server" else settled
    wait_until(lambda: ended(bed, target, incarnation), f"trial {target} after {victim} in {state}")
    after = trial_of(bed, target)
    if after["state"] == "failed":
        story = "\n".join(bed.ask("explain", trial=target)["lines"])
        assert "killed by SIG" in story or "shim died" in story or "no report for" in story, story
    before = {other: len(bed.lines(other)) for other in others}
    for other, its_incarnation in others.items():
        wait_until(lambda o=other: len(bed.lines(o)) > before[o] + 1, f"trial {other} to train on")
        assert trial_of(bed, other)["incarnation"] == its_incarnation, "it was not to notice"
    bed.check_one_incarnation_each()
    return f"{'hit' if hit else 'gone already'}: {after['state']}"


def bring_to_running(bed: Bed) -> int:
    wait_until(lambda: len(live(bed)) >= 2, f"two trials that train\n{bed.log()}")
    return live(bed)[0]


def settled(bed: Bed, number: int, _incarnation: int) -> bool:
    """The trial trains, or rests: a paused one goes on when atoms are free, which others have taken meanwhile."""
    return trial_of(bed, number)["state"] in ("running", "paused", *FINAL)


def bed_of_pairs(make_bed: MakeBed, **keys: Any) -> Bed:
    bed = make_bed(
        devices="cpu:4",
        policy={"name": "fifo", "R": 100_000},
        sizes=[2],
        space={"x": {"uniform": [0, 1]}, "step_s": 0.1},
        **keys,
    )
    bed.begin()
    return bed


def strike_all(bed: Bed, blows: list[tuple[str, str]]) -> None:
    for state, victim in blows:
        print(f"{state}, {victim}: {strike(bed, state, victim)}", flush=True)
    bed.finish()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(times(15)))
def test_killed_in_every_state(make_bed: MakeBed, seed: int) -> None:
    print(f"seed {seed}")
    blows = [(state, victim) for state in STATES for victim in VICTIMS] * 3
    if seed:  # the first run goes through the states in order, transitional ones first
        random.Random(seed).shuffle(blows)
    strike_all(bed_of_pairs(make_bed), blows)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(times(5)))
def test_killed_in_every_state_under_torchrun(make_bed: MakeBed, seed: int) -> None:
    """``launch: cold``: the agent is a process of its own."""
    print(f"seed {seed}")
    blows = [(state, victim) for state in STATES for victim in COLD_VICTIMS]
    random.Random(seed).shuffle(blows)
    strike_all(bed_of_pairs(make_bed, launch="cold"), blows)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(times(7)))
@pytest.mark.parametrize("victim", ["shim", "rank 0", "rank 1"])
@pytest.mark.parametrize("state", ["starting", "yielding", "running"])
def test_stopped_in_every_state(make_bed: MakeBed, state: str, victim: str, seed: int) -> None:
    """Found by the watchdog, or by the patience of whoever asked it to go; a stopped shim alone harms nobody."""
    bed = bed_of_pairs(make_bed, hang_limit="3s")
    target = bring_to_running(bed)
    incarnation = bring_to(bed, target, state)
    pid = born(bed, target, incarnation, victim)
    began = start_time(pid)
    assert began is not None
    send_signal(Identity(pid, began), signal.SIGSTOP)
    if victim == "shim" and state == "running":
        bed.ask("pause", trial=target)  # nothing happens while its shim sleeps, until it is to go
    if state != "starting":  # a start may take ten minutes: a stop ends it here
        wait_until(lambda: has_been_ended(bed, target, incarnation), "the stopped to be ended")
    bed.finish()


def born(bed: Bed, number: int, incarnation: int, victim: str) -> int:
    """The victim's pid, as soon as it has one."""
    pids: list[int] = []
    wait_until(lambda: pids.extend(pids_of(bed, number, incarnation, victim)) or pids, "a birth")
    return pids[0]

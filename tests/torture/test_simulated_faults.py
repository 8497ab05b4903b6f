"""Whole experiments with random faults in virtual time, daemons that die among them (reliability T15).

A seed decides everything: policy, machine, faults, incidents, when daemons die. All invariants are checked after every
event, and at the end that nothing was lost, applied twice or launched twice. A failing seed is printed, and runs alone
with ``GPUSCHED_SEED=<seed>``.
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpusched.sim.physics import Delays
from tests.crashes import Daemons, Failpoints
from tests.faults import Faults, FaultySetup, Incident
from tests.helpers import snapshot
from tests.torture.bed import times

POLICIES = {
    "hypersched": {"r": 2, "R": 40, "cooldown": 1},
    "asha": {"r": 1, "R": 27, "eta": 3.0},
    "fifo": {"R": 8},
    "bandit": {"R": 20},
}


def setup_of(seed: int) -> FaultySetup:
    rng = random.Random(f"setup {seed}")
    policy = rng.choice(list(POLICIES))
    atoms = rng.randint(1, 6)
    deadline_s = rng.uniform(1.0, 5.0)

    def chance(most: float) -> float:
        return rng.choice([0.0, rng.uniform(0, most)])

    return FaultySetup(
        policy=policy,
        options=POLICIES[policy],
        atoms=atoms,
        deadline_s=deadline_s,
        seed=seed,
        scaling=rng.choice(["linear", "sqrt", "none"]),
        assumed=rng.choice([None, "auto"]),
        delays=Delays(
            launch_s=rng.uniform(0, 0.1),
            resize_s=rng.uniform(0, 0.1),
            save_s=rng.uniform(0, 0.02),
            exit_s=rng.uniform(0, 0.03),
            release_s=rng.uniform(0, 0.1),
        ),
        faults=Faults(
            crash=chance(0.03),
            lost=chance(0.05),
            hang=chance(0.002),
            quarantine=chance(0.05),
            readmit_s=rng.uniform(0.1, 1.0),
        ),
        incidents=tuple(_incidents(rng, atoms, deadline_s)),
        sizes=rng.choice([(), (), (1, 2), (1, 2, 4)]),
        max_atoms=rng.choice([None, None, 2]),
    )


def _incidents(rng: random.Random, atoms: int, deadline_s: float) -> list[Incident]:
    found = []
    for _ in range(rng.choice([0, 0, 1, 3])):
        device = f"sim:{rng.randrange(atoms)}"
        at = rng.uniform(0, deadline_s)
        found.append(Incident(at=at, kind="quarantine", device=device))
        found.append(Incident(at=at + rng.uniform(0.05, 1.0), kind="readmit", device=device))
    for _ in range(rng.choice([0, 1, 2])):
        kind = rng.choice(["crash", "lost"])
        found.append(Incident(at=rng.uniform(0, deadline_s), kind=kind, trial=rng.randrange(4)))
    return sorted(found, key=lambda incident: incident.at)


def run(seed: int, folder: Path) -> tuple[str, int]:
    """A hash of all that happened, and how many daemons it took."""
    rng = random.Random(f"deaths {seed}")
    deaths = rng.choice([0, 1, 1, 2, 4])
    points = Failpoints({rng.randint(1, 300) for _ in range(deaths)})
    path = folder / f"{seed}.db"
    daemons = Daemons(setup_of(seed), path, points)
    daemons.run()
    daemons.check()
    happened = hashlib.sha256(repr(snapshot(daemons.experiment)).encode()).hexdigest()
    for file in folder.glob(f"{seed}.db*"):
        file.unlink()
    return happened, daemons.epoch


REGRESSIONS = (1546, 3954)
"""Seeds that found something. 1546: the simulated machine told twice of a release that was asked for twice. 3954: this
test took a score that synchronous halving took late, as it may, for a wrong one."""


def run_seeds(seeds: Iterable[int], *, twice_every: int) -> None:
    only = os.environ.get("GPUSCHED_SEED")
    began, daemons = time.monotonic(), 0
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        for seed in [int(only)] if only else seeds:
            try:
                happened, epoch = run(seed, Path(made))
                daemons += epoch
                if seed % twice_every == 0:
                    assert run(seed, Path(made))[0] == happened, "the same seed, another course"
            except BaseException as error:
                error.add_note(f"reproduce with GPUSCHED_SEED={seed}: {setup_of(seed)}")
                raise
    print(f"{len(list(seeds))} seeds, {daemons} daemons, {time.monotonic() - began:.0f} s")


def test_random_faults_in_virtual_time() -> None:
    run_seeds([*range(12), *REGRESSIONS], twice_every=6)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_seeds_of_random_faults() -> None:
    run_seeds(range(1000, 1000 + times(10_000)), twice_every=20)

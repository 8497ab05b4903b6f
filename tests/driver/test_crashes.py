"""The daemon dies at any instant of an effect, and again; another one goes on, and it is as if nothing had happened.

On the simulated machine, so that thousands of deaths take seconds: nothing acknowledged is lost, nothing is applied
twice, no incarnation is launched twice, and the rungs hold the same scores for the same facts.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from tests.crashes import Daemons, Failpoints
from tests.faults import Faults, FaultySetup, Incident

DELAYS = Delays(launch_s=0.05, resize_s=0.04, save_s=0.01, exit_s=0.02, release_s=0.03)
BAD_DAYS = (
    Incident(at=0.9, kind="quarantine", device="sim:0"),
    Incident(at=1.2, kind="hang", trial=1),
    Incident(at=1.6, kind="readmit", device="sim:0"),
)
ASHA = FaultySetup(
    policy="asha",
    options={"r": 1, "R": 27, "eta": 3.0},
    atoms=2,
    deadline_s=2.0,
    delays=DELAYS,
    faults=Faults(lost=0.03),
    seed=2,
)
SETUPS = {
    "hypersched": replace(
        ASHA,
        policy="hypersched",
        options={"r": 2, "R": 60, "cooldown": 1},
        atoms=3,
        deadline_s=4.0,
        faults=Faults(lost=0.02, crash=0.01),
        incidents=BAD_DAYS,
        assumed="auto",
        seed=1,
    ),
    "asha": ASHA,
    "fifo": replace(
        ASHA,
        policy="fifo",
        options={"R": 6},
        atoms=5,
        faults=Faults(crash=0.02, lost=0.02),
        incidents=BAD_DAYS,
        sizes=(1, 2),
        seed=3,
    ),
    "a sampler that learns": replace(
        ASHA,
        options={"r": 1, "R": 9, "eta": 3.0},
        faults=Faults(lost=0.03, crash=0.02),
        sampler="sampler.py:Near",
        sampler_options={"startup": 3},
        seed=4,
    ),
}
#: Depends on everything that it is told, so that what was forgotten in a death would show.
SAMPLER = """
from gpusched.samplers import Sampler

class Near(Sampler):
    def suggest(self, n, seen, random):
        scored = [trial for trial in seen if trial.score is not None]
        assert [trial.trial for trial in seen] == list(range(len(seen)))
        best = max(scored, key=lambda trial: trial.score).hparams if scored else {}
        return {key: min(0.99, value + 0.01 * random.random()) for key, value in best.items()}
"""


class Named(Failpoints):
    """Counts on, and remembers the instants whose name has this in it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.instants: list[int] = []

    def pass_by(self, name: str) -> None:
        super().pass_by(name)
        if self._name in name:
            self.instants.append(self.count)


def run(setup: Setup, folder: Path, armed: set[int], reopenings: int = 0) -> Daemons:
    folder.mkdir()
    points = Failpoints(armed)
    daemons = Daemons(setup, folder / "journal.db", points, reopenings=reopenings)
    try:
        daemons.run()
        daemons.check()
    except BaseException as error:
        error.add_note(f"{setup.policy}, armed {sorted(armed)}, last instant: {points.last}")
        raise
    return daemons


@pytest.fixture(params=list(SETUPS))
def setup(request: pytest.FixtureRequest, folder: Path) -> Setup:
    found = SETUPS[request.param]
    if not found.sampler.endswith("Near"):
        return found
    (folder / "sampler.py").write_text(SAMPLER)
    return replace(found, sampler=f"{folder}/{found.sampler}")


def test_the_daemon_dies_once(setup: Setup, folder: Path) -> None:
    whole = run(setup, folder / "0", set())
    count, launches = whole.points.count, whole.machine.launches
    assert (whole.epoch, count > 200, launches >= 8) == (1, True, True), "worth crashing"
    rng = random.Random(1)
    for instant in [*range(1, 7), *sorted(rng.sample(range(7, count + 1), 8))]:
        daemons = run(setup, folder / str(instant), {instant})
        assert daemons.epoch == 2


def test_the_daemon_dies_at_every_instant_around_a_suggestion(folder: Path) -> None:
    (folder / "sampler.py").write_text(SAMPLER)
    setup = replace(SETUPS["a sampler that learns"], sampler=f"{folder}/sampler.py:Near")
    points = Named("Suggest")
    Daemons(setup, folder / "journal.db", points).run()
    assert len(points.instants) > 30
    for instant in random.Random(3).sample(points.instants, 12):
        daemons = run(setup, folder / str(instant), {instant})
        assert daemons.epoch == 2
        assert len(daemons.experiment.state.configurations.suggested) > 8


def test_the_daemon_dies_again_and_again_also_while_it_resumes(setup: Setup, folder: Path) -> None:
    rng = random.Random(2)
    anywhere = [set(rng.sample(range(1, 200), 8)) for _ in range(2)]
    in_a_row = [set(range(instant, instant + 6)) for instant in (30, 110, 190)]
    for number, armed in enumerate([*anywhere, *in_a_row]):
        assert run(setup, folder / str(number), armed).epoch == len(armed) + 1


def test_the_daemon_dies_as_the_search_goes_on_after_its_end(setup: Setup, folder: Path) -> None:
    end = run(setup, folder / "0", set()).points.count
    whole = run(setup, folder / "1", set(), reopenings=2)
    assert whole.points.count > end + 50, "it trained on"
    for instant in range(end + 1, end + 25, 5):
        assert run(setup, folder / f"{instant}", {instant}, reopenings=2).epoch == 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_daemon_dies_at_every_instant(setup: Setup, folder: Path) -> None:
    count = run(setup, folder / "0", set()).points.count
    for instant in range(1, count + 1):
        assert run(setup, folder / str(instant), {instant}).epoch == 2

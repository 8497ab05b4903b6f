"""``foresight``: who keeps atoms, who gets them, and what it says; forecasts in ``test_foresight_curves``."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.events import UserAsked
from gpusched.core.trial import Cap, TrialState
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import simulate
from tests.policies.hand import Hand

WORKLOADS = """
import math
SPACE = {name: {"uniform": [0.0, 1.0]} for name in ("u", "v")}
STEP_TIME = 0.1
def plateau(hp, step, random):
    end = 0.65 * (1.0 - hp["v"] ** 0.35)
    return 0.3 + end * (1.0 - math.exp(-step / (1.5 + 6.0 * hp["u"]))) + random.gauss(0.0, 0.004)
def copies(hp, step):
    kind = int(5 * hp["u"])
    return (0.5 + 0.08 * kind) * (1.0 - math.exp(-step / (10.0 + 5.0 * kind)))
def reward(hp, step, random):
    return -300.0 + 4000.0 * hp["u"] * hp["v"] * (1.0 - math.exp(-step / 80.0)) + random.gauss(0.0, 40.0)
"""


@pytest.fixture
def workloads(tmp_path: Path) -> Path:
    file = tmp_path / "workloads.py"
    file.write_text(WORKLOADS)
    return file


def hand(options: dict[str, Any] | None = None, **more: Any) -> Hand:
    return Hand("foresight", options or {}, **more)


def rising(end: float, steps: int) -> list[float]:
    return [end * (1 - math.exp(-step / 10)) for step in range(1, steps + 1)]


def train_all(hand: Hand, at: float, score: Callable[[int, int], float]) -> None:
    """Each live trial reports its next step: ``score(trial, step)``."""
    for trial in list(hand.state.live):
        if hand.trial(trial).is_live:
            hand.report(trial, score(trial, hand.trial(trial).step + 1), at=at)


def good_and_bad(hand: Hand) -> None:
    """20 reports of trial 0, which is good, and of trial 1 for as long as it trains."""
    for step, (good, bad) in enumerate(zip(rising(0.9, 20), rising(0.3, 20), strict=True), 1):
        hand.report(0, good, at=float(step))
        if hand.trial(1).is_live:
            hand.report(1, bad, at=float(step))


# ---------------------------------------------------------------- pauses


def test_no_atom_is_idle_while_there_is_something_to_train() -> None:
    experiment = hand(atoms=4, configurations=6, deadline_s=300.0)
    idle = 0
    for step in range(1, 40):
        train_all(experiment, step, lambda n, own: (0.4 + 0.08 * n) * (1 - math.exp(-own / 8)))
        held = sum(trial.atoms for trial in experiment.state.live.values())
        idle = 0 if held == 4 else idle + 1
        assert idle <= 1, f"{4 - held} atoms idle at {step} s: they may wait for one report only"


def test_where_one_trial_fits_at_a_time_a_converged_leader_makes_room(workloads: Path) -> None:
    setup = Setup(
        policy="foresight",
        workload=f"{workloads}:plateau",
        atoms=1,
        deadline_s=30.0,
    )
    result = simulate(setup)
    assert result.trials > 8, "one atom was kept by the first trial that was good"
    assert result.top_steps < 150, "more than half of the 300 steps"


def test_the_leader_never_rests() -> None:
    """The leader has converged here, and a look at a newcomer costs little."""
    experiment = hand(atoms=2, deadline_s=300.0)
    for step in range(1, 250):
        leader = experiment.policy.leader
        if leader is not None and experiment.trial(leader).is_live:
            was_live = leader
        train_all(experiment, step, lambda n, own: (0.5 if n else 0.9) * (1 - math.exp(-own / 4)))
    assert was_live == 0
    assert experiment.trial(0).step == 249
    assert experiment.count > 10


def test_of_two_that_train_the_better_one_leads() -> None:
    """Half a deviation was held against it, and whichever led first kept half of a machine of two atoms."""
    experiment = hand(atoms=2, configurations=2, deadline_s=300.0, scaling="none")
    for step in range(1, 17):
        for trial, end in ((0, 0.5), (1, 0.7)):
            if experiment.trial(trial).is_live:
                experiment.report(trial, end * (1 - math.exp(-step / 20)), at=float(step))
        if step == 4:
            assert experiment.policy.leader == 1


def test_a_leader_that_may_grow_no_more_leaves_free_atoms_to_others() -> None:
    """Free atoms were kept for it until the deadline."""
    experiment = hand(atoms=2, deadline_s=100.0)
    experiment.trial(0).cap = Cap(1, "its steps take longer on 2 atoms")
    idle = 0
    for step in range(1, 95):
        train_all(experiment, step, lambda n, own: (0.1 if n else 0.9) * (1 - math.exp(-own / 40)))
        idle += sum(trial.atoms for trial in experiment.state.live.values()) < 2
    assert experiment.policy.leader == 0
    assert idle < 5


def test_a_slow_trial_is_priced_by_its_own_steps_also_while_it_is_paused() -> None:
    """A step took as long for all, so that a model five times as large looked five times as cheap."""
    experiment = hand(atoms=3, configurations=3, deadline_s=2000.0)
    for step in range(1, 9):
        for trial, took_s, end in ((0, 1.0, 0.9), (1, 1.0, 0.6), (2, 5.0, 0.6)):
            if experiment.trial(trial).is_live:
                score = end * (1 - math.exp(-step / 10))
                experiment.report(trial, score, at=5.0 * step, took_s=took_s)
    beliefs = experiment.policy.beliefs
    assert beliefs[2].bid < beliefs[1].bid
    forecast = beliefs[2].mean
    experiment.asked("pause", 2)
    experiment.report(2, 0.6 * (1 - math.exp(-0.9)), at=45.0, took_s=5.0)
    experiment.policy._is_stale = True
    experiment.report(0, 0.9 * (1 - math.exp(-0.9)), at=45.0)
    assert beliefs[2].mean == pytest.approx(forecast, abs=0.02)


def test_others_keep_their_atoms_while_a_person_holds_the_incumbent() -> None:
    experiment = hand(atoms=2, configurations=2, deadline_s=600.0)
    good_and_bad(experiment)
    assert experiment.policy.leader == 0
    experiment.feed(UserAsked(at=20.5, verb="pause", trial=0))
    experiment.report(0, 0.8, at=21.0)
    assert experiment.trial(0).state is TrialState.PAUSED
    for step, score in enumerate(rising(0.3, 60)[20:], 22):
        if experiment.trial(1).is_live:
            experiment.report(1, score, at=float(step))
    assert experiment.trial(1).step > 50


# ---------------------------------------------------------------- growth


def test_the_incumbent_gets_all_atoms_towards_the_deadline() -> None:
    result = simulate(Setup(policy="foresight", options={"R": None}, atoms=8, deadline_s=40.0))
    alone = 40.0 / 0.1
    assert result.top_steps > 2 * alone, "never grew"


# ---------------------------------------------------------------- any metric


@pytest.mark.parametrize("name", ["copies", "reward"])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_ties_noise_and_scores_without_a_ceiling(workloads: Path, name: str, share: float) -> None:
    setup = Setup(
        policy="foresight",
        workload=f"{workloads}:{name}",
        atoms=4,
        deadline_s=30.0,
        delays=Delays(launch_s=3.0 * share * 10, resize_s=3.0 * share * 10),
    )
    first, again = simulate(setup), simulate(setup)
    assert first.best is not None
    assert (first.best, first.trials, first.steps) == (again.best, again.trials, again.steps)


def test_a_minimised_metric_is_the_same_search_as_its_negative() -> None:
    """A loss of 1 - score decides as the score does."""

    def score(trial: int, step: int) -> float:
        return (0.3 + 0.1 * (trial % 5)) * (1 - math.exp(-step / 8))

    best = []
    for mode in ("max", "min"):
        experiment = Hand("foresight", {}, atoms=2, mode=mode)
        for step in range(1, 60):
            train_all(experiment, step, score if mode == "max" else lambda *at: 1.0 - score(*at))
        steps = {i: t.step for i, t in experiment.state.trials.items()}
        best.append((experiment.policy.leader, steps))
    assert best[0] == best[1]


# ---------------------------------------------------------------- words, options


def test_it_says_what_it_believes() -> None:
    experiment = hand(atoms=2, deadline_s=600.0)
    good_and_bad(experiment)
    view = experiment.state
    first = experiment.policy.explain(view, view.trials[0])
    assert first[0].startswith("forecast 0.")
    assert first[0].endswith("at the deadline")
    assert first[1] == "it has the best forecast of all"
    assert len(experiment.policy.explain(view, view.trials[1])) == 1
    assert any("has the best forecast" in note for note in experiment.policy.notes(view))


def test_without_a_trial_that_may_train_no_trial_is_said_to_lead() -> None:
    experiment = hand(atoms=1, configurations=1)
    for step, score in enumerate(rising(0.9, 20), 1):
        experiment.report(0, score, at=float(step))
    experiment.asked("pause", 0)
    experiment.report(0, 0.9, at=30.0)
    (line,) = experiment.explain(0)
    assert line.startswith("forecast 0.")
    assert experiment.notes.startswith("no trial leads: none that may train")

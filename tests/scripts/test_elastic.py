"""SEER's elastic baselines: their plans keep to time and budget, and a run follows its plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpusched import policies
from gpusched.core.commands import Command, Launch
from gpusched.core.events import Event
from gpusched.sim.setup import Setup
from gpusched.sim.study import simulate


@pytest.fixture(scope="module")
def elastic() -> Iterator[Any]:
    """The module, whose policies no other test knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "REGISTRY", policies.REGISTRY)
        from scripts.papers import elastic

        yield elastic


@pytest.mark.parametrize(("T", "B"), [(15, 60), (15, 240), (30, 240), (30, 960), (60, 960)])
@pytest.mark.parametrize("policy", ["e_grid", "e_hyperband"])
def test_a_plan_keeps_to_time_and_budget(elastic: Any, policy: str, T: int, B: int) -> None:
    plan = elastic.Options(T=T, B=B).plan(policy)
    assert max(bracket[-1].end_min for bracket in plan) <= T
    assert 0.75 * B <= sum(map(elastic.cost, plan)) <= B


def test_grid_search_explores_for_half_of_the_time(elastic: Any) -> None:
    """240 atom-minutes: the winner has 4 atoms for 7.5 minutes, so 28 trials have one each before."""
    ((first, second),) = elastic.grid(15.0, 240.0, 1, 4)
    assert (first.end_min, first.trials, first.atoms) == (7.5, 28, 1)
    assert (second.end_min, second.trials, second.atoms) == (15.0, 1, 4)


def test_the_best_of_the_grid_trains_on_more_atoms(elastic: Any) -> None:
    launched: list[tuple[float, int]] = []

    def observer(event: Event, commands: Sequence[Command]) -> None:
        sizes = [len(command.devices) for command in commands if isinstance(command, Launch)]
        launched.extend((event.at, atoms) for atoms in sizes)

    options = {"T": 1.0, "B": 6.0, "p_min": 1, "p_max": 4, "R": None}
    setup = Setup(policy="e_grid", options=options, atoms=8, deadline_s=60.0)
    result = simulate(setup, observer=observer, check=True)
    assert [atoms for at, atoms in launched if at < 30.0] == [1] * 8
    assert [atoms for at, atoms in launched if at >= 30.0] == [4]
    assert result.device_s == pytest.approx(8 * 30 + 4 * 30, rel=0.02)

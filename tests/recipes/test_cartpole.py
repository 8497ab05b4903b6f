"""The recipe ``cartpole``: worlds that end and begin anew, a checkpoint of them, and what is learnt from play."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

Recipe = Callable[[str], ModuleType]


@pytest.fixture
def cartpole(recipe: Recipe) -> ModuleType:
    return recipe("cartpole")


@pytest.fixture
def ppo(recipe: Recipe) -> ModuleType:
    return recipe("ppo")


def test_a_cart_that_falls_begins_anew_and_counts_its_episode(
    cartpole: ModuleType, ppo: ModuleType
) -> None:
    world = cartpole.CartPole(2, seed=0)
    world.state[0] = torch.tensor([0.0, 0.0, 0.2, 3.0])  # beyond 12 degrees after a move
    world.length[1] = cartpole.LONGEST - 1
    reward, fallen, late, reached = world.step(torch.tensor([0, 0]))
    assert reward.tolist() == [1.0, 1.0]
    assert (fallen.tolist(), late.tolist()) == ([True, False], [False, True])
    assert reached[0, 2] > 0.2 > world.state[0, 2].abs()
    assert (int(world.episodes), world.recent[:2].tolist()) == (2, [1.0, 500.0])
    assert world.length.tolist() == [0.0, 0.0]
    assert world.recent.mean() == 501 / ppo.RECENT


def test_a_restored_world_goes_on_as_if_it_had_not_stopped(cartpole: ModuleType) -> None:
    world, later = cartpole.CartPole(4, seed=1), cartpole.CartPole(4, seed=2)
    actions = torch.randint(0, 2, (400, 4))
    for action in actions[:200]:
        world.step(action)
    later.load_state_dict(world.state_dict())
    for action in actions[200:]:
        world.step(action)
        later.step(action)
    assert torch.equal(world.state, later.state)
    assert torch.equal(world.recent, later.recent)
    assert world.episodes > 40


def test_returns_end_with_an_episode_that_fell_and_not_with_one_that_ran_out_of_time(
    cartpole: ModuleType, ppo: ModuleType
) -> None:
    torch.manual_seed(0)
    agent = ppo.Agent(4, 2, 8)
    for parameter in agent.critic[-1].parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(agent.critic[-1].bias, 10.0)  # each state is worth ten
    world = cartpole.CartPole(2, seed=0)
    world.state[0] = torch.tensor([0.0, 0.0, 0.2, 3.0])
    world.length[1] = cartpole.LONGEST - 1
    *_, gains = ppo.play(agent, world, gamma=0.5, lam=0.0)
    assert gains.reshape(ppo.MOVES, 2)[0].tolist() == [1.0, 1.0 + 0.5 * 10.0]

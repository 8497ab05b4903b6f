"""Details of the recipes: data, games, refusals. ``test_runs.py`` trains them on one rank and on two."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from gpusched.worker.hparams import HParams
from tests.recipes import made
from tests.worker.fakes import run_ranks, values

Recipe = Callable[[str], ModuleType]

# ---------------------------------------------------------------- charlm


def test_the_model_does_not_see_what_follows(recipe: Recipe) -> None:
    def answers() -> bool:
        charlm = recipe("charlm")
        net = charlm.Transformer(HParams({**charlm.DEFAULTS, "width": 16, "context": 12})).eval()
        text = torch.randint(0, 256, (1, 12))
        other = text.clone()
        other[0, 6:] = (other[0, 6:] + 1) % 256
        with torch.no_grad():
            before, after = net(text), net(other)
        same = torch.allclose(before[0, :6], after[0, :6], atol=1e-6)
        return same and not torch.allclose(before[0, 6:], after[0, 6:], atol=1e-6)

    assert values(run_ranks(answers, 1)) == [True]


# ---------------------------------------------------------------- imagenet


def test_a_flat_validation_folder_is_explained(recipe: Recipe, tmp_path: Path) -> None:
    made.imagenet(tmp_path, classes=2, images_a_class=1)
    (tmp_path / "val" / "n00000001").rename(tmp_path / "val" / "odd")
    with pytest.raises(SystemExit, match=r"2 are in one only, such as n00000001\. .*is flat"):
        recipe("imagenet").open_images(tmp_path, 32)


# ---------------------------------------------------------------- cifar10


@pytest.fixture
def cifar10(recipe: Recipe) -> Any:
    return recipe("cifar10")


def test_the_archives_own_pickles_are_read(cifar10: Any, data: Path) -> None:
    pixels, labels = cifar10.read_images(data / "cifar10" / "cifar-10-batches-py", cifar10.TRAINING)
    assert pixels.shape == (50, 3, 32, 32)
    assert labels.tolist() == 5 * list(range(10))
    chance = np.random.default_rng(0)
    first = made.coloured(0, 32, chance).transpose(2, 0, 1)
    assert torch.equal(pixels[0], torch.from_numpy(first))


def test_a_pickle_that_wants_to_run_something_is_refused(cifar10: Any, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    content = pickle.dumps({b"data": Trap(), b"labels": []})
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(SystemExit, match=r"test_batch is damaged.*it asks for posix\.system"):
        cifar10.read_images(tmp_path, cifar10.TESTING)
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists(), "the trap works where nothing refuses it"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([]),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}),
        pickle.dumps({b"data": np.zeros((1, 3000), np.uint8), b"labels": [0]}),
    ],
)
def test_a_damaged_file_is_named(cifar10: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(SystemExit, match="test_batch is damaged"):
        cifar10.read_images(tmp_path, cifar10.TESTING)


# ---------------------------------------------------------------- cartpole


def test_a_restored_world_goes_on_as_if_it_had_not_stopped(recipe: Recipe) -> None:
    cartpole = recipe("cartpole")
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
    recipe: Recipe,
) -> None:
    cartpole, ppo = recipe("cartpole"), recipe("ppo")
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

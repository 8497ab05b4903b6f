"""Thirty-two configurations of ``recipes/babi.py``, trained for 300 epochs each, for HyperSched's figure 12a.

    PYTHONPATH=scripts python -m papers.curves_babi     records ``curves/babi.jsonl`` again (forty minutes of a core)

A configuration is drawn from the 32 with replacement, as 36 atoms look at more than there are. Its step takes as long
as it took, on a scale on which the median configuration needs 1 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from types import SimpleNamespace

from papers import real

CONFIGURATIONS, EPOCHS = 32, 300
#: ``draw`` tells two draws of one configuration apart.
SPACE = {
    "configuration": {"choice": list(range(CONFIGURATIONS))},
    "draw": {"uniform": [0.0, 1.0]},
}
METRIC, MODE = "accuracy", "max"


def accuracy(hp: Mapping[str, int], step: int) -> tuple[float, float]:
    """Share of questions that a memory network on bAbI's first task answers rightly."""
    return real.at("babi", hp, step)


def train(random: Random) -> Iterator[float]:
    """Yield the accuracy after each epoch of a configuration of the paper's space (section 6.3.3)."""
    import torch
    from torch.nn import functional

    recipe = real.recipe_of("babi")
    hp = SimpleNamespace(**recipe.DEFAULTS)
    hp.state, hp.embedding = random.randint(4, 128), random.randint(32, 128)
    hp.dropout, hp.optimizer = random.uniform(0.1, 0.5), random.choice(sorted(recipe.OPTIMIZERS))
    (training, testing), vocabulary, shape = recipe.tensors(hp, "cpu")
    net = recipe.MemoryNetwork(vocabulary, shape, hp.embedding, hp.state, hp.dropout)
    optimizer = recipe.OPTIMIZERS[hp.optimizer](net.parameters())
    while True:
        net.train()
        for numbers in torch.randperm(len(training)).split(32):
            stories, asked, answers = training.batch(numbers)
            loss = functional.cross_entropy(net(stories, asked), answers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            said = net(testing.stories, testing.questions).argmax(1)
        yield float((said == testing.answers).float().mean())


if __name__ == "__main__":
    real.record("babi", train, CONFIGURATIONS, EPOCHS)

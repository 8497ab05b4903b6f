"""Recorded losses of a small transformer (``recipes/charlm.py``) as a workload: they fall fast first, and slowly on.

    gpusched simulate scripts/papers/charlm.py:recorded --policy foresight --set R=200 --atoms 2 --deadline 60
    python scripts/papers/charlm.py      records the curves again (torch; half an hour of one core)

Bits a byte of text held back after each of 200 steps of ten updates, and the processor time of a step, for 22
configurations drawn as ``scripts/bench_search.py --task charlm`` draws them. A configuration of the workload is a blend
of two of them, nearer to the first, whose time a step it has.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

SPACE = {
    "u": {"uniform": [0.0, 1.0]},
    "v": {"uniform": [0.0, 1.0]},
    "blend": {"uniform": [0.0, 0.5]},
}
METRIC, MODE = "bits", "min"
STEPS, CONFIGURATIONS = 200, 22
CURVES = Path(__file__).with_name("charlm-curves.jsonl")


@functools.cache
def curves() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CURVES.read_text().splitlines()]


def recorded(hp: Mapping[str, float], step: int, random: Random) -> tuple[float, float]:
    """Bits a byte, and the seconds of a step; a curve stays at its last value."""
    known, at = curves(), min(step, STEPS) - 1
    first, second = (known[int(hp[name] * len(known))] for name in ("u", "v"))
    bits = first["bits"][at] + hp["blend"] * (second["bits"][at] - first["bits"][at])
    return bits, first["step_s"]


# ---------------------------------------------------------------- recording


def _draw(random: Random) -> SimpleNamespace:
    lr = math.exp(random.uniform(math.log(1e-4), math.log(1e-1)))
    weight_decay = math.exp(random.uniform(math.log(1e-3), math.log(1)))
    width, depth = random.choice([16, 32, 64]), random.choice([1, 2])
    batch = random.choice([8, 16, 32])
    return SimpleNamespace(lr=lr, weight_decay=weight_decay, width=width, depth=depth, batch=batch)


def _train(number: int) -> Iterator[tuple[float, float]]:
    """Yield the bits a byte and the processor time of each step of one configuration."""
    import charlm as recipe
    import torch

    hp = _draw(Random(f"charlm {number}"))
    vars(hp).update(context=32, dropout=0.1, heads=4, text="stdlib")
    text = recipe.read_text(hp, "cpu")
    kept = int(len(text) * (1 - recipe.HELD_BACK))
    training, held_back = (recipe.Windows(part, hp.context) for part in (text[:kept], text[kept:]))
    some = torch.arange(0, len(held_back), math.ceil(len(held_back) / recipe.SAMPLES))
    torch.manual_seed(number)
    net = recipe.Transformer(hp)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=hp.lr, betas=(0.9, 0.95), weight_decay=hp.weight_decay, fused=True
    )
    ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / recipe.RAMP))
    batches = iter(torch.randperm(len(training)).split(hp.batch))
    for _ in range(STEPS):
        began = time.process_time()
        for _ in range(10):
            loss = recipe.bits(net, *training.batch(next(batches), shift=True))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            ramp.step()
        net.eval()
        with torch.no_grad():
            bits = float(recipe.bits(net, *held_back.batch(some, shift=False)))
        net.train()
        yield bits, time.process_time() - began


def _record() -> None:
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes"))
    with CURVES.open("w") as file:
        for number in range(CONFIGURATIONS):
            bits, seconds = zip(*_train(number), strict=True)
            row = {
                "number": number,
                "step_s": round(statistics.median(seconds), 4),
                "bits": [round(value, 3) for value in bits],
            }
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _record()

"""The training of ``recipes/digits.py`` for trials of any tool: a step is an epoch, its score the held-out accuracy."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import task
import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the recipe imports gpusched, which the other tools' environment lacks
spec = importlib.util.spec_from_file_location("recipe", ROOT / "recipes" / "digits.py")
recipe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipe)


class Plain:
    """A trial without gpusched, as far as the recipe asks: one process and torch's own loaders."""

    device = torch.device("cpu")

    def __init__(self, hparams: Mapping[str, Any]) -> None:
        self.hparams = SimpleNamespace(**hparams)
        self.step = 0

    def wrap(self, model: Any) -> Any:
        return model

    def scale_lr(self, opt: Any) -> None:
        """Leave the learning rate as it is."""

    def track(self, **objects: Any) -> None:
        """Save nothing."""

    def loader(self, dataset: Any, batch_size: int) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size, shuffle=True)

    def eval_loader(self, dataset: Any) -> DataLoader[Any]:
        return DataLoader(dataset, 256)

    def mean(self, right: Any, total: Any) -> float:
        return float(right) / total

    def steps(self) -> Iterator[int]:
        for self.step in range(task.R_STEPS):
            yield self.step


def train(
    hparams: Mapping[str, Any], report: Callable[[int, float], None], trial: Any = None
) -> None:
    """Train as the recipe does, and report the accuracy of every epoch."""
    trial = trial or Plain(hparams)
    trial.report = lambda accuracy, loss: report(trial.step + 1, accuracy)
    recipe.train(trial)

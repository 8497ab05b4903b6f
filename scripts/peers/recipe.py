"""The training of ``recipes/charlm.py`` or a task of ``small.py`` for trials of any tool.

A score is the loss, or the share of errors, on data held back, with its sign turned.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import small
import task
import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the recipe imports gpusched, which the other tools' environment lacks
NAME = task.TASK["name"]
if task.TASK["is_small"]:
    DEFAULTS: dict[str, Any] = {}
    train_recipe: Callable[[Any], None] = functools.partial(small.train, name=NAME)
else:
    spec = importlib.util.spec_from_file_location("trained", ROOT / "recipes" / "charlm.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    DEFAULTS, train_recipe = recipe.DEFAULTS, recipe.train


class Plain:
    """A trial without gpusched, as far as the recipe asks: one process and torch's own loaders."""

    device = torch.device("cpu")

    def __init__(self, hparams: Mapping[str, Any]) -> None:
        self.hparams = SimpleNamespace(**{**DEFAULTS, **task.TASK["fixed"], **hparams})
        self.step = 0

    def wrap(self, model: Any) -> Any:
        return model

    def scale_lr(self, opt: Any) -> None:
        """Leave the learning rate as it is."""

    def track(self, **objects: Any) -> None:
        """Save nothing."""

    def schedule(self, schedule: Any) -> Any:
        return schedule

    def loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, shuffle=True, **options)

    def eval_loader(self, dataset: Any, batch_size: int = 256, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size, **options)

    def mean(self, right: Any, total: Any) -> float:
        return float(right) / total

    def steps(self) -> Iterator[int]:
        for self.step in range(task.R_STEPS):
            yield self.step


def train(
    hparams: Mapping[str, Any], report: Callable[[int, float], None], trial: Any = None
) -> None:
    """Train as the recipe does, and report the score of every step."""
    trial = trial or Plain(hparams)
    trial.report = lambda bits=0.0, loss=0.0, **_: report(trial.step + 1, -float(bits + loss))
    train_recipe(trial)

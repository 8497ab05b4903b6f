"""Recipes as they run: their own scripts, in real ranks over gloo, against an experiment's folder.

Everything a script imports is imported here once, so that a rank is forked with it, as the warm server does.
"""

from __future__ import annotations

import importlib
import multiprocessing.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpusched.runtime.rank import run_file
from gpusched.runtime.warm import HEAVY
from tests.recipes import made
from tests.worker.fakes import Answer, Bench, Ended, daemon, run_ranks

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="session")
def recipe() -> Callable[[str], ModuleType]:
    """A module of the folder of recipes, imported without being run."""

    def imported(name: str) -> ModuleType:
        sys.path.insert(0, str(RECIPES))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(RECIPES))

    return imported


@pytest.fixture(scope="session", autouse=True)
def warm(recipe: Callable[[str], ModuleType]) -> None:
    for module in HEAVY:
        importlib.import_module(module)
    recipe("vision_ops")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``cifar10``, ``imagenet`` and ``text.txt``, small."""
    folder = tmp_path_factory.mktemp("data")
    made.cifar10(folder / "cifar10", images_a_file=10)
    made.imagenet(folder / "imagenet", classes=3, images_a_class=12)
    (folder / "text.txt").write_text("All work and no play makes a dull text. " * 200)
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "run")


def run_recipe(name: str, *arguments: str) -> None:
    """The script as a rank runs it; loader workers are ended as at the end of any Python process."""
    try:
        run_file(str(RECIPES / f"{name}.py"), arguments)
    finally:
        multiprocessing.util._exit_function()


def launch(bench: Bench, name: str, ranks: int, incarnation: int, answer: Answer) -> list[Ended]:
    """An incarnation of the trial in ``bench``, told by the daemon what ``answer`` says. All ranks end well."""
    with daemon(bench, answer):
        ended = run_ranks(run_recipe, ranks, bench, incarnation, (name,))
    for rank in ended:
        assert not rank.error
        assert rank.code in (None, 0), rank.stderr
        assert rank.stderr == ""  # no warnings either
    return ended


def start(name: str, *arguments: str, ranks: int = 1) -> list[Ended]:
    """The script without gpusched: alone, or as plain torchrun's ranks."""
    return run_ranks(run_recipe, ranks, arguments=(name, *arguments))


def reported(bench: Bench) -> list[tuple[int, dict[str, Any]]]:
    """(step, metrics) of every report."""
    return [(line["k"], line["m"]) for line in bench.reports()]

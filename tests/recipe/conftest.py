"""A folder with a script, and recipes written into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpusched.errors import RecipeError
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe

GOOD = """\
script: train.py
deadline: 10m
metric: accuracy
space: {lr: {loguniform: [1e-4, 1]}}
"""
"""The least recipe; keys appended to it begin in line 5."""

Load = Callable[..., Recipe]
Problems = Callable[..., list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Load:
    """Load ``GOOD`` and more keys."""

    def load_more(more: str = "", *overrides: str, whole: str = "", **flags: str) -> Recipe:
        file = folder / "digits.yaml"
        file.write_text(whole or GOOD + more)
        return load_recipe(file, overrides, **flags)

    return load_more


@pytest.fixture
def problems(load: Load, folder: Path) -> Problems:
    """The problems of ``GOOD`` and more keys, without the folder's name."""

    def find(more: str = "", *overrides: str, whole: str = "", **flags: str) -> list[str]:
        with pytest.raises(RecipeError) as caught:
            load(more, *overrides, whole=whole, **flags)
        assert caught.value.exit_code == 2
        return [line.replace(f"{folder}/", "") for line in caught.value.problems]

    return find

"""The reference page, the schema for editors and the model have the same keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpusched.recipe.recipe import load_recipe
from gpusched.recipe.schema import LrScaling, RecipeModel
from scripts import generate_schema

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "recipe.md").read_text()
KEYS = [*RecipeModel.model_fields, *(f"lr_scaling.{name}" for name in LrScaling.model_fields)]


def test_the_schema_is_up_to_date() -> None:
    found = generate_schema.TARGET.read_text()
    assert found == generate_schema.text(), "run: python scripts/generate_schema.py"


def test_every_key_of_the_schema_has_a_description() -> None:
    schema = json.loads(generate_schema.TARGET.read_text())
    for name in RecipeModel.model_fields:
        assert len(schema["properties"][name]["description"]) > 10, name


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_in_the_reference(key: str) -> None:
    assert re.search(rf"^\| `{re.escape(key)}` \|", PAGE, re.MULTILINE)


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_reference_has_examples() -> None:
    assert len(EXAMPLES) >= 4
    assert "# yaml-language-server: $schema=" in EXAMPLES[0]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_good_recipe(example: str, folder: Path) -> None:
    (folder / "example.yaml").write_text(example)
    assert load_recipe(folder / "example.yaml").configurations().sample(0)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda file: file.name
)
def test_every_recipe_that_comes_along_is_good(file: Path) -> None:
    assert load_recipe(file).name == file.stem

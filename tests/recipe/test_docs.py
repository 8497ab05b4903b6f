"""The reference page and ``Recipe`` have the same keys, types and defaults."""

from __future__ import annotations

import re
import shlex
import typing
from dataclasses import fields
from pathlib import Path
from typing import Literal

import pytest

from gpusched import policies
from gpusched.cli import main
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe, keys

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "recipe.md").read_text()
#: Key: type, default, meaning.
TABLE = {
    found[1]: found[2].split(" | ", 2)
    for found in re.finditer(
        r"^\| `([a-z_.]+)` \| (.* \| .*) \|$", PAGE.partition("## Other tools")[0], re.MULTILINE
    )
}


KEYS = keys()


@pytest.mark.parametrize("key", KEYS)
def test_the_reference_says_of_every_key_what_is_true(key: str) -> None:
    assert key in TABLE, "docs/recipe.md has no row for this key"
    kind, default, meaning = TABLE[key]
    about = KEYS[key]
    assert len(meaning) > 10
    assert (default == "needed") == about.is_needed
    if isinstance(about.default, str | bool):
        assert default == f"`{str(about.default).lower()}`"
    elif isinstance(about.default, int | float) and key != "lr_scaling":
        assert default in (f"`{about.default:g}`", f"`{about.default:g}s`")
    if typing.get_origin(about.type) is Literal:
        assert kind == ", ".join(f"`{value}`" for value in typing.get_args(about.type))


def test_the_reference_names_no_key_that_is_none() -> None:
    options = {
        item.name for name in policies.names() for item in fields(policies.options_type(name))
    }
    assert set(TABLE) <= {*KEYS, *options}


def test_the_file_s_keys_are_the_recipe_s() -> None:
    """Through the resolved form, so that a key cannot be read and then lost."""
    resolved = load_recipe(ROOT / "recipes" / "digits.yaml").resolved()
    assert set(resolved) == set(keys())
    assert Recipe.from_resolved(resolved).resolved() == resolved


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_good_recipe(example: str, folder: Path) -> None:
    (folder / "example.yaml").write_text(example)
    assert load_recipe(folder / "example.yaml").configurations().sample(0)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda file: file.name
)
def test_every_recipe_that_comes_along_is_good(file: Path) -> None:
    assert load_recipe(file).name == file.stem


#: Commands that start a recipe which comes along, as the pages and the recipes themselves show them.
COMMANDS = sorted(
    {
        found.strip()
        for file in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*.yaml"))
        for found in re.findall(
            r"gpusched run ((?:recipes/)?\w+\.yaml --[^\n`#]+)",
            re.sub(r"\\\n#? *", "", file.read_text()),
        )
        if (ROOT / "recipes" / Path(found.split()[0]).name).exists()
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_is_shown_is_taken(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, *options = shlex.split(command)
    monkeypatch.chdir(ROOT / "recipes")
    assert main(["validate", Path(recipe).name, *options]) == 0


def test_examples_and_commands_are_found() -> None:
    assert len(EXAMPLES) >= 2
    assert {command.split()[0] for command in COMMANDS} >= {"cartpole.yaml", "charlm.yaml"}

"""Recipes nobody would write, made from the grammar. Never a traceback.

Each is either accepted, and then its resolved form loads back as an equal recipe, or refused with messages that each
name the file and a line of it.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.errors import InputError, RecipeError
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe, keys
from gpusched.space.forms import NAMES

dumped = partial(json.dumps, ensure_ascii=False)
SHORT = settings(max_examples=75, deadline=None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train.py").write_text("print('trained')\n")
    return folder / "fuzz.yaml"


def read(file: Path, data: bytes) -> Recipe | InputError:
    """Read a recipe of these bytes; anything but InputError that is raised fails the test."""
    file.write_bytes(data)
    try:
        return load_recipe(file)
    except InputError as error:
        return error


def check(file: Path, data: bytes) -> Recipe | None:
    """Load ``data``; assert that it is accepted or refused as it should be."""
    found = read(file, data)
    if isinstance(found, RecipeError):
        last_line = len(data.decode("utf-8-sig").splitlines()) + 1
        for problem in found.problems:
            place = re.match(re.escape(str(file)) + r":(\d+): \S", problem)
            assert place, problem
            assert 1 <= int(place[1]) <= last_line, problem
            assert problem.isprintable()
        return None
    if isinstance(found, InputError):
        assert str(found).startswith(str(file))
        return None
    assert Recipe.from_resolved(json.loads(json.dumps(found.resolved()))) == found
    found.configurations().sample(0)
    return found


# ------------------------------------------------------------ from the grammar

MEANT = "q when name lr opt R r eta power cpu:2 auto 10m sgd asha fifo linear train.py cold 1 2 min"
words = st.sampled_from([*NAMES, *MEANT.split()])
numbers = st.sampled_from([0, 1, 2, 0.1, 0.5, -1, 1e-4, 81, 2**63 - 1, -(2**63) + 1, 1e308, 5e-324])
scalars = words | numbers | st.booleans() | st.none() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
bounds = st.lists(numbers, min_size=2, max_size=2)
forms = st.one_of(
    st.builds(
        lambda name, b: {name: b}, st.sampled_from(NAMES), bounds | st.lists(scalars, max_size=4)
    ),
    st.builds(lambda name, b, q: {name: b, "q": q}, st.sampled_from(NAMES), bounds, numbers),
    st.builds(lambda b, key, value: {"choice": b, "when": {key: value}}, bounds, words, scalars),
    values,
)
#: What some keys take, so that many a recipe is accepted.
taken = st.fixed_dictionaries(
    {
        "space": st.dictionaries(
            st.sampled_from(["lr", "opt", "eta"]) | words, forms, min_size=1, max_size=2
        )
    },
    optional={
        "args": st.lists(words | numbers, max_size=3),
        "env": st.dictionaries(st.sampled_from(["A", "lr"]), words | numbers, max_size=2),
        "policy": st.sampled_from(["fifo", {"name": "asha", "r": 2, "R": 81}]),
        "mode": st.sampled_from(["min", "max"]),
        "seed": st.sampled_from([0, 2**63 - 1]),
    },
)
BASE = {"script": "train.py", "deadline": 60, "metric": "a", "space": {"x": 1}}
recipes = st.builds(
    lambda base, taken, more: base | taken | more,
    st.sampled_from([BASE, BASE, {}]),
    taken,
    st.just({}) | st.dictionaries(st.sampled_from(sorted(keys())) | words, values, max_size=4),
)


@given(recipes)
@SHORT
def test_generated(file: Path, recipe: dict[str, object]) -> None:
    text = "".join(f"{dumped(key)}: {dumped(value)}\n" for key, value in recipe.items())
    check(file, text.encode("utf-8", "replace"))

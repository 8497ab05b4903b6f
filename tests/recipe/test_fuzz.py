"""Recipes nobody would write: made from the grammar, and real ones with bytes broken. Never a traceback.

Each is either accepted, and then its resolved form loads back as an equal recipe, or refused with messages that each
name the file and a line of it.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpusched.errors import InputError, RecipeError
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe, keys
from gpusched.recipe.yaml import write_yaml
from gpusched.space.forms import NAMES
from tests.recipe.conftest import GOOD
from tests.recipe.test_recipe import EVERYTHING

LONGEST_S = 20.0
"""Of this thread's own work: what else the machine does is no matter. A hundredth of it is usual."""
SHORT = settings(max_examples=150, deadline=None)
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train.py").write_text("print('trained')\n")
    return folder / "fuzz.yaml"


def read(file: Path, data: bytes) -> Recipe | InputError:
    """What comes of a recipe of these bytes; anything else that is raised fails the test."""
    file.write_bytes(data)
    began = time.thread_time()
    try:
        return load_recipe(file)
    except InputError as error:
        return error
    finally:
        assert time.thread_time() - began < LONGEST_S


def check(file: Path, data: bytes) -> Recipe | None:
    """Load ``data``; assert that it is accepted or refused as it should be."""
    found = read(file, data)
    if isinstance(found, RecipeError):
        last_line = len(data.decode("utf-8-sig").splitlines()) + 1
        for problem in found.problems:
            place = re.match(re.escape(str(file)) + r":(\d+): \S", problem)
            assert place or problem.startswith("... and "), problem
            assert place is None or 1 <= int(place[1]) <= last_line, problem
            assert problem.isprintable()
        return None
    if isinstance(found, InputError):
        assert str(found).startswith(str(file))
        return None
    assert read(file, found.to_yaml().encode()) == found
    assert Recipe.from_resolved(json.loads(json.dumps(found.resolved()))) == found
    found.configurations().sample(0)
    return found


# ------------------------------------------------------------ from the grammar

MEANT = "q when name lr opt R r eta power ramp cpu:2 auto 10m sgd asha fifo linear train.py cold 1 2 min"
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
spaces = st.dictionaries(words | st.text(max_size=5), forms, max_size=4)
recipes = st.builds(
    lambda base, more, space: {**(json.loads(base)), **more, **({"space": space} if space else {})},
    st.sampled_from(
        ['{"script": "train.py", "deadline": 60, "metric": "a", "space": {"x": 1}}', "{}"]
    ),
    st.dictionaries(
        st.sampled_from(sorted({path[0] for path in keys()})) | words, values, max_size=4
    ),
    spaces,
)


def generated(file: Path, recipe: dict[str, object]) -> None:
    text = "".join(write_yaml({key: value}) for key, value in recipe.items())
    check(file, text.encode("utf-8", "replace"))


@given(recipes)
@SHORT
def test_generated(file: Path, recipe: dict[str, object]) -> None:
    generated(file, recipe)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(recipes)
@LONG
def test_generated_long(file: Path, recipe: dict[str, object]) -> None:
    generated(file, recipe)


# ------------------------------------------------------------ broken

PIECES = rb"[ ] { } &a *a !!x ' # | > % ? 1e999 .inf [[[[[[[[ \ud800 ../ true null -1"
ODD = (b"", b'"', b"\x00", b"\xff", b"\n", b"\t", b"\r", b": ", b"- ", b"<<: ", b"---\n", b"9" * 30)
snippets = st.sampled_from([*PIECES.split(), *ODD, b"\xe2\x80\xa8", b"\xc2\x85", b"\xef\xbb\xbf"])
breaks = st.lists(
    st.tuples(st.integers(0, 900), st.integers(0, 12), snippets | st.binary(max_size=4)), max_size=4
)


def broken(file: Path, text: str, changes: list[tuple[int, int, bytes]]) -> None:
    data = text.encode()
    for place, length, piece in changes:
        data = data[:place] + piece + data[place + length :]
    check(file, data)


@given(st.sampled_from([GOOD, EVERYTHING]), breaks)
@SHORT
def test_broken(file: Path, text: str, changes: list[tuple[int, int, bytes]]) -> None:
    broken(file, text, changes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(st.sampled_from([GOOD, EVERYTHING]), breaks)
@LONG
def test_broken_long(file: Path, text: str, changes: list[tuple[int, int, bytes]]) -> None:
    broken(file, text, changes)


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
)
@SHORT
@example(b"")
@example(b"\xff\xfe")
def test_noise(file: Path, data: bytes) -> None:
    assert check(file, data) is None


def test_the_fuzz_does_reach_good_recipes(file: Path) -> None:
    assert check(file, EVERYTHING.encode()) is not None
    assert check(file, GOOD.encode()) is not None


# ------------------------------------------------------------ overrides

override_texts = st.builds(
    "{}={}".format,
    st.lists(st.sampled_from(["space", "lr", "policy", "R", "x", "", "0", "seed"]), max_size=4).map(
        ".".join
    )
    | st.text(max_size=6),
    scalars.map(str) | st.text(max_size=10),
)


@given(st.lists(override_texts | st.text(max_size=10), max_size=3))
@SHORT
def test_overrides(file: Path, overrides: list[str]) -> None:
    file.write_text(GOOD)
    problems: tuple[str, ...] = ()
    try:
        load_recipe(file, overrides)
    except RecipeError as error:
        problems = error.problems
    for problem in problems:
        assert re.match(r"--set |" + re.escape(str(file)) + r":\d+: ", problem), problem


# ------------------------------------------------------------ large

SPACE = GOOD.partition("space")[0] + "space:\n"
LARGE = {
    "unknown keys": GOOD + "".join(f"key{n}: 1\n" for n in range(40_000)),
    "unknown options": GOOD + "policy:\n" + "".join(f"  o{n}: 1\n" for n in range(40_000)),
    "unknown conditions": SPACE
    + "".join(f"  k{n}: {{const: 1, when: {{z{n}: 1}}}}\n" for n in range(15_000)),
    "a chain": SPACE
    + "  k0: 1\n"
    + "".join(f"  k{n + 1}: {{const: 1, when: {{k{n}: 1}}}}\n" for n in range(15_000)),
    "misspelt forms": SPACE + "".join(f"  k{n}: {{unifrm: [1, 0]}}\n" for n in range(15_000)),
    "devices": GOOD + "devices: [" + ", ".join(f"GPU-{n}abcdef" for n in range(30_000)) + "]\n",
    "a word": GOOD + "mode: " + "x" * 900_000 + "\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large(name: str, file: Path) -> None:
    """Near the bounds of size: seconds, not minutes; what grows with the square of the input shows here."""
    file.write_text(LARGE[name])
    began = time.thread_time()
    with contextlib.suppress(RecipeError):
        load_recipe(file)
    assert time.thread_time() - began < 30

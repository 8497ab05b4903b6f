"""YAML in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.recipe.yaml import Unreadable, dotted, read_yaml

SCALARS: dict[str, object] = {
    **{"1e-4": 1e-4, ".5": 0.5, "5.": 5.0, "+1": 1, "-0": 0, "010": 10, "0x1F": 31, "0o17": 15},
    **{"true": True, "FALSE": False, "": None, "~": None, "Null": None, str(2**63 - 1): 2**63 - 1},
}
TEXTS = "1:30 2024-01-01 no on y tRue nULL 1e 0x ١٢ e5 1.2.3 = <<"


@pytest.mark.parametrize(
    ("text", "value"), [*SCALARS.items(), *((text, text) for text in TEXTS.split())]
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    found = read_yaml(f"[{text}]" if text else "[~]", "r").data[0]
    assert (found, type(found)) == (value, type(value))


def test_quoted_and_block_text_stays_text() -> None:
    data = read_yaml("a: '1'\nb: \"true\"\nc: |\n  2\nd: >-\n  3\n", "r").data
    assert data == {"a": "1", "b": "true", "c": "2\n", "d": "3"}


def test_every_key_and_item_has_its_line() -> None:
    text = "# digits\na: 1\nb:\n\n  c: [1,\n   2]\n  ? d\n  : e\nf: {g: 1,\n h: 2}\n"
    places = read_yaml(text, "r.yaml").places
    assert {dotted(path): str(place) for path, place in places.items()} == {
        **{
            "": "r.yaml:1",
            "a": "r.yaml:2",
            "b": "r.yaml:3",
            "b.c": "r.yaml:5",
            "b.c[0]": "r.yaml:5",
        },
        **{
            "b.c[1]": "r.yaml:6",
            "b.d": "r.yaml:7",
            "f": "r.yaml:9",
            "f.g": "r.yaml:9",
            "f.h": "r.yaml:10",
        },
    }


MARKS = "ab1 \n\t:-?,[]{}#&*!|>'\"%~"


@given(st.text() | st.text(MARKS) | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_unreadable(text: str) -> None:
    found = None
    try:
        read_yaml(text, "r")
    except Unreadable as error:
        found = error
    assert found is None or (found.line >= 1 and str(found).isprintable())

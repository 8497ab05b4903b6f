"""Compact JSON is what ``json`` itself would write, with its C encoder and without."""

from __future__ import annotations

import json
import json.encoder
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.journal import compact

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(VALUES)
def test_it_is_what_json_writes_and_comes_back(value: Any) -> None:
    text = compact.encode(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert text.isascii()
    assert compact.decode(f" {text}\r\n") == json.loads(text)


@pytest.mark.parametrize("value", [math.nan, {"a": -math.inf}, [math.inf]])
def test_what_is_not_finite_is_no_json(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        compact.encode(value)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        compact.encode({"a": object()})


def test_with_the_encoder_of_another_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    assert compact._encoder()({"a": [1, "é", None, 0.1]}) == '{"a":[1,"\\u00e9",null,0.1]}'


@pytest.mark.parametrize("text", ["", "{", '{"a":1} x', "nonsense"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|no JSON from"):
        compact.decode(text)

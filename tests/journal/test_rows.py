"""Every event and every command goes to JSON and comes back equal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from gpusched.core.commands import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event
from gpusched.journal import rows
from gpusched.protocol import Report
from tests.events import reported

numbers = st.integers(0, 10**12)
floats = st.floats(allow_nan=False, allow_infinity=False)
#: Lone surrogates and NUL included: what a dying process prints is not ours to choose.
text = st.text(st.characters(), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)

FORMS: dict[Any, st.SearchStrategy[Any]] = {
    int: numbers,
    float: floats,
    str: text,
    bool: st.booleans(),
    type(None): st.none(),
    UnsetType: st.just(UNSET),
    object: json_values,
    tuple[str, ...]: st.lists(text, max_size=4).map(tuple),
    Report: st.builds(
        Report,
        *(numbers, st.integers(1, 10**12), numbers, st.floats(0, 1e12)),
        st.dictionaries(text, floats | st.sampled_from(["nan", "inf", "-inf"]), max_size=3),
    ),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    if hint in FORMS:
        return FORMS[hint]
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(arguments)
    if get_origin(hint) is Mapping:
        return st.dictionaries(text, values_of(arguments[1]), max_size=4)
    return st.one_of(*map(values_of, arguments))


def instances(kind: type) -> st.SearchStrategy[Any]:
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: values_of(field.type) for field in fields})


@pytest.mark.parametrize("kind", list(EVENT_TYPES.values()), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_event_comes_back(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(instances(kind))
    body = rows.event_body(event)
    assert body.encode()
    again = rows.event_from(kind.__name__, event.at, body)
    assert again == event
    assert type(again) is kind
    assert rows.event_body(again) == body


@pytest.mark.parametrize("kind", list(COMMAND_TYPES.values()), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_command_comes_back(kind: type[Command], data: st.DataObject) -> None:
    commands = data.draw(st.lists(instances(kind), min_size=1, max_size=3))
    written = rows.commands_text(commands)
    assert written.encode()
    again = rows.commands_from(written)
    assert again == commands
    assert all(type(command) is kind for command in again)
    assert rows.commands_text(again) == written


def test_defaults_are_not_written() -> None:
    report = reported(at=1.0, trial=3, incarnation=1, seq=9, step=9, metric=0.5)
    assert json.loads(rows.event_body(report)) == {
        "trial": 3,
        "report": {"kind": "report", "i": 1, "n": 9, "k": 9, "s": 0.0},
        "metric": 0.5,
    }


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("Reporte", "{}"),
        ("Reported", "{}"),
        ("Reported", "not json"),
    ],
)
def test_what_is_no_event_raises_what_the_journal_catches(kind: str, body: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        rows.event_from(kind, 0.0, body)


@given(json_values)
def test_compact_json_is_what_json_reads(value: Any) -> None:
    assert json.loads(rows.to_text(value)) == value


@pytest.mark.parametrize("value", [math.nan, {"a": -math.inf}, [math.inf, "\ud800"]])
def test_what_is_not_finite_is_no_json(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        rows.to_text(value)

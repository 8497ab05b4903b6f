"""Every event and every command goes to JSON and comes back equal."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.commands import COMMAND_TYPES, Command, KeepBest, Kill, Launch
from gpusched.core.events import EVENT_TYPES, Event
from gpusched.journal import rows
from gpusched.protocol import Report
from tests.events import reported

numbers = st.integers(0, 10**12)
floats = st.floats(allow_nan=False, allow_infinity=False)
#: Lone surrogates and NUL included: what a dying process prints is not ours to choose.
text = st.text(st.characters(), max_size=12)
names = st.lists(text, max_size=4).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "at": floats,
    "waited_s": floats,
    "atoms": numbers,
    "n": numbers,
    "by": text,
    "why": text,
    "device": text,
    "devices": names,
    "epoch": numbers,
    "error": st.none() | text,
    "grace_s": floats,
    "hparams": st.dictionaries(text, json_values, max_size=4),
    "incarnation": numbers,
    "islands": st.dictionaries(text, numbers, max_size=3),
    "low": st.booleans(),
    "outcome": st.sampled_from(["yielded", "finished", "failed", "lost", "killed"]),
    "reason": text,
    "report": st.builds(
        Report,
        *(numbers, st.integers(1, 10**12), numbers, st.none() | st.floats(0, 1e12)),
        st.dictionaries(text, floats | st.sampled_from(["nan", "inf", "-inf"]), max_size=3),
    ),
    "hold": st.booleans(),
    "save": st.booleans(),
    "deadline_s": floats,
    "save_s": floats,
    "saved_step": st.none() | numbers,
    "size_bytes": numbers,
    "target": floats,
    "timer": text,
    "unusable": st.dictionaries(text, text, max_size=3),
    "labels": st.dictionaries(text, text, max_size=3),
    "stacks": st.booleans(),
    "unbegun": st.booleans(),
    "what": text,
    "checkpoints": st.dictionaries(text, numbers, max_size=3),
    "max_trials": st.none() | numbers,
    "verb": st.sampled_from(["pause", "unpause", "stop_trial", "stop", "cancel", "kill"]),
}
#: Fields that mean something else in another type.
OF_ONE_TYPE = {
    ("Reported", "metric"): st.none() | floats,
    ("KeepBest", "metric"): floats,
    ("LimitsMoved", "target"): st.none() | floats,
    ("UserAsked", "trial"): st.none() | numbers,
    ("Suggested", "hparams"): st.none() | FIELDS["hparams"],
}


def instances(kind: type) -> st.SearchStrategy[Any]:
    fields = {}
    for field in msgspec.structs.fields(kind):
        common = FIELDS.get(field.name, numbers if field.name in ("trial", "step") else None)
        found = OF_ONE_TYPE.get((kind.__name__, field.name), common)
        assert found is not None, f"say in FIELDS what {kind.__name__}.{field.name} may be"
        fields[field.name] = found
    return st.builds(kind, **fields)


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


def test_commands_of_several_types_keep_their_order() -> None:
    commands = [
        Launch(1, 2, ("d0", "d1"), {"lr": 0.1, "layers": [1, 2]}),
        Kill(3, 1, 0.5),
        KeepBest(1, 9, 0.5, 1),
    ]
    assert rows.commands_from(rows.commands_text(commands)) == commands


def test_defaults_are_not_written() -> None:
    report = reported(at=1.0, trial=3, incarnation=1, seq=9, step=9, metric=0.5)
    assert json.loads(rows.event_body(report)) == {
        "trial": 3,
        "report": {"kind": "report", "i": 1, "n": 9, "k": 9},
        "metric": 0.5,
    }


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("Reporte", "{}"),
        ("Reported", "{}"),
        ("Reported", "not json"),
        ("Reported", '{"trial":1,"surprise":2}'),
        ("TrialUp", "[]"),
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


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError):
        rows.to_text({"a": object()})

"""Events and commands as JSON, and back. Used by the journal and by whoever shows events to machines.

A field that is left at its default is not written, so that a report is as short as it can be. Everything is written in
ASCII: what a failing script prints may be no valid Unicode, and must not be what fails the journal.
"""

from __future__ import annotations

import dataclasses
import json
import json.encoder
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import fields as struct_fields

from gpusched.core.decisions import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event, Reported
from gpusched.protocol import Report


def json_encoder() -> Callable[[Any], str]:
    """Make an encoder of compact JSON in ASCII, once: ``json.dumps`` with options, and ``JSONEncoder.encode`` too, make
    the C encoder anew for each value, which costs more than encoding a report.
    """
    plain = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
    escape = json.encoder.encode_basestring_ascii
    try:
        make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]
        chunks = make(None, plain.default, escape, None, ":", ",", False, False, False)
    except (AttributeError, TypeError):  # an interpreter that makes its encoder otherwise
        return plain.encode
    return lambda value: "".join(chunks(value, 0))


#: A value of dicts, lists, tuples, strings, finite numbers, truths and None as text. Raises TypeError, ValueError.
to_json = json_encoder()


def _defaults(kind: type) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


_MISSING = object()
#: Of each kind of event the fields but ``at``, each with its default.
_EVENT_FIELDS = {
    kind: [
        (field.name, _defaults(kind).get(field.name, _MISSING))
        for field in dataclasses.fields(kind)
        if field.name not in ("at", "report")
    ]
    for kind in EVENT_TYPES.values()
}
#: The fields of a report, which stand among those of its event, each with its default.
_REPORT_FIELDS = [
    (one.name, one.default if one.default_factory is NODEFAULT else one.default_factory())
    for one in struct_fields(Report)
]
_COMMAND_FIELDS = {
    name: tuple(field.name for field in dataclasses.fields(kind))
    for name, kind in COMMAND_TYPES.items()
}


def event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event without ``at`` and without those at their default."""
    body = {}
    for name, default in _EVENT_FIELDS[type(event)]:
        value = getattr(event, name)
        if value != default:
            body[name] = value
    if type(event) is Reported:
        for name, default in _REPORT_FIELDS:
            value = getattr(event.report, name)
            if value != default:
                body[name] = value
    return body


def event_body(event: Event) -> str:
    """Return the fields as a JSON object in text."""
    return to_json(event_fields(event))


def event_from(kind: str, at: float, body: str) -> Event:
    """Read the event again. Raises KeyError, TypeError or ValueError on anything else."""
    fields = json.loads(body)
    if type(fields) is not dict:
        raise ValueError(f"{kind}: not an object but {body:.40}")
    for name, value in fields.items():
        if type(value) is list:
            fields[name] = tuple(value)
    if kind == "Reported":
        given = {name: fields.pop(name) for name, _ in _REPORT_FIELDS if name in fields}
        fields["report"] = Report(**given)
    return EVENT_TYPES[kind](at=at, **fields)


def command_fields(command: Command) -> dict[str, Any]:
    """Return the fields of a command, as JSON would give them back."""
    return {name: getattr(command, name) for name in _COMMAND_FIELDS[type(command).__name__]}


def commands_text(commands: Sequence[Command]) -> str:
    """Commands as a JSON list of [name, fields]; nothing at all for none."""
    if not commands:
        return ""
    return to_json([[type(c).__name__, command_fields(c)] for c in commands])


def commands_from(text: str) -> list[Command]:
    """Read the commands again."""
    if not text:
        return []
    return [_command(name, fields) for name, fields in json.loads(text)]


def _command(name: str, fields: Mapping[str, Any]) -> Command:
    values = {key: tuple(v) if type(v) is list else v for key, v in fields.items()}
    command: Command = COMMAND_TYPES[name](**values)
    return command

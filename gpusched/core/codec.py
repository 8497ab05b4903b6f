"""Events and commands as JSON, and back. Used by the journal and by whoever shows events to machines.

A field that is left at its default is not written, so that a report is as short as it can be. Everything is written in
ASCII: what a failing script prints may be no valid Unicode, and must not be what fails the journal.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpusched.core.decisions import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _defaults(kind: type) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


_EVENT_FIELDS = {
    name: tuple(field.name for field in dataclasses.fields(kind) if field.name != "at")
    for name, kind in EVENT_TYPES.items()
}
_EVENT_DEFAULTS = {name: _defaults(kind) for name, kind in EVENT_TYPES.items()}
_COMMAND_FIELDS = {
    name: tuple(field.name for field in dataclasses.fields(kind))
    for name, kind in COMMAND_TYPES.items()
}
_MISSING = object()


def event_fields(event: Event) -> dict[str, Any]:
    """The fields of an event but ``at``, and but those that are at their default."""
    name = type(event).__name__
    defaults = _EVENT_DEFAULTS[name]
    body = {}
    for field in _EVENT_FIELDS[name]:
        value = getattr(event, field)
        if value != defaults.get(field, _MISSING):
            body[field] = value
    return body


def event_body(event: Event) -> str:
    """The same as a JSON object in text."""
    return _ENCODER.encode(event_fields(event))


def event_from(kind: str, at: float, body: str) -> Event:
    """The event again. Raises KeyError, TypeError or ValueError on what is none."""
    fields = json.loads(body)
    if type(fields) is not dict:
        raise ValueError(f"{kind}: not an object but {body:.40}")
    for name, value in fields.items():
        if type(value) is list:
            fields[name] = tuple(value)
    return EVENT_TYPES[kind](at=at, **fields)


def command_fields(command: Command) -> dict[str, Any]:
    """The fields of a command, as JSON would give them back."""
    return {name: getattr(command, name) for name in _COMMAND_FIELDS[type(command).__name__]}


def commands_text(commands: Sequence[Command]) -> str:
    """Commands as a JSON list of [name, fields]; nothing at all for none."""
    if not commands:
        return ""
    return _ENCODER.encode([[type(c).__name__, command_fields(c)] for c in commands])


def commands_from(text: str) -> list[Command]:
    """The commands again."""
    if not text:
        return []
    return [_command(name, fields) for name, fields in json.loads(text)]


def _command(name: str, fields: Mapping[str, Any]) -> Command:
    values = {key: tuple(v) if type(v) is list else v for key, v in fields.items()}
    command: Command = COMMAND_TYPES[name](**values)
    return command

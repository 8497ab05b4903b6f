"""Events and commands as JSON, and back. Used by the journal and by whoever shows events to machines.

A field of an event that is left at its default is not written, so that a report is as short as it can be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import convert, to_builtins
from msgspec.json import Encoder
from msgspec.structs import fields as fields_of

from gpusched.core.decisions import COMMAND_TYPES, Command
from gpusched.core.events import EVENT_TYPES, Event
from gpusched.protocol import Report

_encode = Encoder().encode
#: The fields of a report with their names on the wire: up to format 5 they stood among those of their event.
_REPORT_FIELDS = [(one.name, one.encode_name) for one in fields_of(Report)]


def to_text(value: Any) -> str:
    """Return compact JSON. Raises ValueError for a number that is not finite."""
    try:
        data = _encode(value)
        if b"null" not in data:  # which is what msgspec writes for NaN, too
            return data.decode()
    except UnicodeEncodeError:
        pass  # what a failing script prints may be no valid Unicode; it is escaped
    return json.dumps(to_builtins(value), separators=(",", ":"), allow_nan=False)


def event_body(event: Event) -> str:
    """Return the fields as a JSON object in text, without ``at``, the first, which the journal has beside it."""
    text = to_text(event)
    return "{" + text[text.index(",") + 1 :]


def event_from(kind: str, at: float, body: str) -> Event:
    """Read the event again. Raises KeyError, TypeError or ValueError on anything else."""
    fields = json.loads(body)
    if kind == "Reported" and "report" not in fields:
        fields["report"] = {to: fields.pop(name) for name, to in _REPORT_FIELDS if name in fields}
    return convert({"at": at, **fields}, EVENT_TYPES[kind])


def commands_text(commands: Sequence[Command]) -> str:
    """Commands as a JSON list of [name, fields]; nothing at all for none."""
    return to_text([(type(one).__name__, one) for one in commands]) if commands else ""


def commands_from(text: str) -> list[Command]:
    """Read the commands again."""
    if not text:
        return []
    return [convert(fields, COMMAND_TYPES[name]) for name, fields in json.loads(text)]

"""Stand-in for the part of msgspec that ``protocol`` uses, for an interpreter that has no msgspec.

A script under ``launch: cold`` may run in an interpreter of the user's own (``python:`` in the recipe), which has torch
and finds ``gpusched``, but none of its libraries. Records are dataclasses there, lines go through ``json``, and types
are checked as msgspec checks them but for bounds: what such a rank hears comes from its own daemon.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

field = dataclasses.field


class DecodeError(ValueError):
    """A line that does not hold one of the records asked for."""


class Meta:
    """Bounds of a number; not checked here."""

    def __init__(self, **bounds: float) -> None:
        self.bounds = bounds


class Struct:
    """A record; ``rename`` gives names on the wire, ``tag`` is the value of ``kind``."""

    _tag: typing.ClassVar[str | None] = None
    _wire: typing.ClassVar[dict[str, str]] = {}

    def __init_subclass__(
        cls, tag: str | None = None, rename: dict[str, str] | None = None, **_options: object
    ) -> None:
        dataclasses.dataclass(cls)
        cls._tag = tag
        cls._wire = {f.name: (rename or {}).get(f.name, f.name) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def to_builtins(record: Any) -> Any:
    """A record as a dict, without fields that are at their default."""
    if not isinstance(record, Struct):
        return record
    found = {} if record._tag is None else {"kind": record._tag}
    for one in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, one.name)
        made = one.default_factory() if callable(one.default_factory) else one.default
        if value != made:
            found[record._wire[one.name]] = to_builtins(value)
    return found


def convert(value: Any, kind: Any) -> Any:
    """The value as a ``kind``: a record, a union, or a plain type. Raises DecodeError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union or origin is types.UnionType:
        return _one_of(value, inner)
    if origin is typing.Annotated:
        return convert(value, inner[0])
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _record(value, kind)
    if origin is typing.Literal:
        fits = value in inner
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    elif kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = kind is Any or isinstance(value, type(None) if kind is None else origin or kind)
    if not fits:
        raise DecodeError(f"expected {kind}, got {value!r:.60}")
    return value


def _one_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    problem = DecodeError("no kind fits")
    for kind in kinds:
        try:
            return convert(value, kind)
        except DecodeError as error:
            problem = error
    raise problem


def _record(value: Any, kind: type[Struct]) -> Any:
    if not isinstance(value, dict) or value.get("kind", kind._tag) != kind._tag:
        raise DecodeError(f"expected a {kind._tag} record, got {value!r:.60}")
    hints = typing.get_type_hints(kind)
    given = {
        name: convert(value[wire], hints[name])
        for name, wire in kind._wire.items()
        if wire in value
    }
    try:
        return kind(**given)
    except TypeError as error:
        raise DecodeError(str(error)) from None


class Encoder:
    """A record as bytes."""

    def encode(self, record: Any) -> bytes:
        text = json.dumps(to_builtins(record), separators=(",", ":"), allow_nan=False)
        return text.encode()


class Decoder:
    """Bytes as one of the records of a union."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def decode(self, line: bytes) -> Any:
        return convert(json.loads(line), self._kind)

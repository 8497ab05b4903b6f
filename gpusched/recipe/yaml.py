"""YAML in and out. In: a ``Document``, plain values with the line of every key, within bounds.

The rules are YAML 1.2's core schema: ``1e-4`` is a number, ``no`` is text, ``010`` is ten. A key twice, an alias, a
tag, a number that is not finite or has more than 64 bits is a problem. At most 256 KiB, 32 levels, and 20,000 lines,
commas, colons and brackets: a recipe may come from anywhere, and reading it must take bounded time and memory.

ruamel.yaml's scanner and parser do the work; values are built here from its events, because its own constructor follows
aliases, honours tags and knows dates.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from gpusched.errors import InputError
from gpusched.recipe.messages import Path
from gpusched.space.forms import INT_LIMIT
from gpusched.text import nearest, printable

MAX_BYTES = 256 << 10
MAX_DEPTH = 32
MAX_MARKS = 20_000
_MARKS = ("\n", ",", ":", "[", "{", "- ", "? ")
MAX_KEY = 100
"""Characters of a key; longer ones could not be written back, as YAML allows 1024 with escapes."""

_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


Finding = tuple[Path, str]
"""A key and its problem, before the key's place in the file is looked up."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Place of a value: a file and its line, or (line 0) an option of the command line."""

    origin: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}" if self.line else self.origin


@dataclass(frozen=True, slots=True)
class Problem:
    """A message about a key and its place. ``path`` is empty for the document as a whole."""

    place: SourcePlace
    path: Path
    message: str

    def __str__(self) -> str:
        where, key = str(self.place), dotted(self.path)
        is_told = where.startswith(f"--{key} ")  # an option of that name
        parts = [where, "" if is_told else key, self.message]
        return printable(": ".join(part for part in parts if part))


@dataclass(slots=True)
class Document:
    """Plain values, and the place of each key and item by its path."""

    data: Any
    places: dict[Path, SourcePlace]
    problems: list[Problem] = field(default_factory=list)
    #: Keys whose value could not be taken; a placeholder stands there.
    unusable: set[Path] = field(default_factory=set)

    #: Keys that the command line set, which are likelier to be wrong than those of the file.
    overridden: list[Path] = field(default_factory=list)

    def place(self, path: Path) -> SourcePlace:
        """Return the place of a key: an override of it or inside it, its line, or the nearest map around it."""
        for inner in self.overridden if path else ():
            if inner[: len(path)] == path:
                return self.places[inner]
        while path not in self.places and path:
            path = path[:-1]
        return self.places[path]

    def complain(self, path: Path, message: str) -> None:
        self.problems.append(Problem(self.place(path), path, message))


def dotted(path: Path) -> str:
    """``("space", "lr", 0)`` -> ``space.lr[0]``; safe to print whatever the keys are made of."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", part)
            text += ("." if text else "") + (part if plain else repr(part[:40]))
    return text


# ------------------------------------------------------------ reading


class Unreadable(Exception):
    """Not YAML, or beyond the bounds: nothing more can be said about it."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(message)


def read_text(path: FilePath) -> str:
    """Return the text of a recipe file, ``-`` for standard input. Raises InputError."""
    name = printable(str(path)[:300])
    try:
        if name == "-":
            return _decoded(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
        if path.is_dir():
            raise InputError(f"{name}: is a folder; name the recipe inside it")
        if path.exists() and not path.is_file():
            raise InputError(f"{name}: is not a regular file")
        if path.suffix == ".py":
            example = f"script: {printable(path.name[:100])}"
            raise InputError(
                f"{name}: is a Python script; give the recipe that names it ({example})"
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file{_hint(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be read: {reason}") from None
    return _decoded(data, name)


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES >> 10} KiB; is this a recipe?")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name}:1: is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: not UTF-8 text (byte {error.start})") from None


def _hint(path: FilePath) -> str:
    """Name the recipe beside the missing one that was probably meant."""
    folder = path.parent
    try:
        names = [entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    meant = nearest(path.name, sorted(names)[:1000], 0.75)
    return f"; did you mean {folder / meant}?" if meant else ""


def read_yaml(text: str, origin: str) -> Document:
    """Parse one document; raises Unreadable. Duplicate keys and bad numbers are in ``problems``."""
    if sum(map(text.count, _MARKS)) > MAX_MARKS:
        marks = "lines, commas, colons and brackets"
        raise Unreadable(1, f"more than {MAX_MARKS} {marks}; is this a recipe?")
    builder = _Builder(_events(text), origin)
    builder.build()
    return builder.document


class _Event(NamedTuple):
    """An event of the parser: ``Scalar``, ``MappingStart``, .. in this line of the text."""

    kind: str
    line: int
    source: Any

    def require_plain(self) -> None:
        """Refuse aliases and tags, which no recipe needs. Raises Unreadable."""
        if self.kind == "Alias":
            raise Unreadable(self.line, "an alias (*name); write the value out")
        if self.source.tag is not None:
            raise Unreadable(self.line, f"a tag ({str(self.source.tag)[:40]!r}); leave it out")


def _events(text: str) -> Iterator[_Event]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            kind = type(event).__name__.removesuffix("Event")
            yield _Event(kind, event.start_mark.line + 1, event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())[:200]
        line = mark.line + 1 if mark else 1
        if "${" in "".join(text.splitlines()[line - 1 : line]):
            problem += "; put what has ${..} in quotes"
        if "not allowed here" in problem:
            problem += " (is this line, or the one before, indented as it should be?)"
        if "'\\t'" in problem:
            problem += "; indent with blanks instead of tabs"
        raise Unreadable(line, f"not YAML: {problem}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, "not YAML: a control character; remove it") from None
    except YAMLError as error:
        raise Unreadable(1, f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except (ValueError, OverflowError) as error:  # "\UFFFFFFFF": no such character
        raise Unreadable(1, f"not YAML: {str(error)[:200]}") from None


class _Builder:
    """Builds plain values from the parser's events, and notes the place of each."""

    def __init__(self, events: Iterator[_Event], origin: str) -> None:
        self.document = Document(None, {(): SourcePlace(origin, 1)})
        self._events, self._origin = events, origin

    def build(self) -> None:
        documents = 0
        for event in self._events:
            if event.kind == "DocumentStart":
                documents += 1
                if documents > 1:
                    raise Unreadable(event.line, "a second document (---); a recipe is one")
                if event.source.version not in (None, (1, 2)):
                    why = "another version of YAML; recipes are YAML 1.2, so leave %YAML out"
                    raise Unreadable(event.line, why)
            elif event.kind not in ("StreamStart", "StreamEnd", "DocumentEnd"):
                self.document.data = self._value(event, (), is_kept=True)

    def _value(self, event: _Event, path: Path, *, is_kept: bool) -> Any:
        """Return the value that begins with this event. ``is_kept``: False under a key that was there already."""
        event.require_plain()
        if is_kept:
            self.document.places.setdefault(path, SourcePlace(self._origin, event.line))
        if event.kind == "Scalar":
            return self._scalar(event, path)
        if len(path) >= MAX_DEPTH:
            deep = f"nested more than {MAX_DEPTH} levels deep"
            raise Unreadable(event.line, f"{deep}; write the values nearer to the top")
        if event.kind == "MappingStart":
            return self._mapping(path, is_kept)
        items: list[Any] = []
        while (event := next(self._events)).kind != "SequenceEnd":
            items.append(self._value(event, (*path, len(items)), is_kept=is_kept))
        return items

    def _mapping(self, path: Path, is_kept: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (event := next(self._events)).kind != "MappingEnd":
            key = _key(event)
            here = (*path, key)
            is_new = key not in found
            if is_kept and is_new:
                self.document.places[here] = SourcePlace(self._origin, event.line)
            elif is_kept:
                earlier = f"this key is in line {self.document.places[here].line} already"
                self._complain(here, event.line, f"{earlier}; leave one of them out")
            value = self._value(next(self._events), here, is_kept=is_kept and is_new)
            found.setdefault(key, value)
        return found

    def _scalar(self, event: _Event, path: Path) -> Any:
        text = event.source.value
        value, problem = (text, "") if event.source.style else resolve(text)
        if isinstance(value, str) and not _is_unicode(value):
            value, problem = "", "half of a surrogate pair is not a character; remove it"
        if problem:
            self._complain(path, event.line, problem)
            self.document.unusable.add(path)
        return value

    def _complain(self, path: Path, line: int, message: str) -> None:
        self.document.problems.append(Problem(SourcePlace(self._origin, line), path, message))


def _key(event: _Event) -> str:
    event.require_plain()
    if event.kind != "Scalar":
        raise Unreadable(event.line, "a list or map as a key; a key is plain text")
    text: str = event.source.value
    if text == "<<":
        raise Unreadable(event.line, "a merge key (<<); write the keys out")
    if not _is_unicode(text):
        half = "a key with half of a surrogate pair, which is not a character"
        raise Unreadable(event.line, f"{half}; remove it")
    if len(text) > MAX_KEY:
        raise Unreadable(event.line, f"a key of more than {MAX_KEY} characters; shorten it")
    return text


def resolve(text: str) -> tuple[str | int | float | bool | None, str]:
    """Return the value of a plain (unquoted) scalar, and its problem (empty if it has none)."""
    if text in _WORDS:
        return _WORDS[text], ""
    if _INT.fullmatch(text):
        if len(text) > 30:  # more digits than any number we take, fewer than int() chokes on
            return 0, "a whole number of more than 64 bits"
        value = int(text) if text[:2] not in ("0o", "0x") else int(text, 0)
        is_small = abs(value) <= INT_LIMIT
        return (value, "") if is_small else (0, "a whole number of more than 64 bits")
    if _FLOAT.fullmatch(text):
        number = float(text)
        return (
            (0.0, f"{text[:40]} is too large for a number") if math.isinf(number) else (number, "")
        )
    if _NOT_FINITE.fullmatch(text):
        return 0.0, f"{text}: a number in a recipe must be finite"
    return text, ""


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


# ---------------------------------------------------------------- YAML out


def write_yaml(data: Mapping[str, object], indent: str = "") -> str:
    """Maps in block style, everything else as JSON (which is YAML): reads back as exactly the same values."""
    lines = []
    for key, value in data.items():
        name = key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else _json(key)
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{name}:\n{write_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {_json(value)}\n")
    return "".join(lines)


def _json(value: object) -> str:
    """JSON, but a character beyond 16 bits is one YAML escape instead of JSON's two."""

    def one(pair: re.Match[str]) -> str:
        character = json.loads(f'"{pair[0]}"')
        return f"\\U{ord(character):08x}"

    text = json.dumps(value, allow_nan=False, default=list)
    return re.sub(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", one, text)

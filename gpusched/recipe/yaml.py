"""YAML in and out. In: a ``Document``, plain values with the line of every key, within bounds.

The rules are YAML 1.2's core schema: ``1e-4`` is a number, ``no`` is text, ``010`` is ten. A key twice, an alias, a
tag, a number that is not finite or has more than 64 bits is a problem. At most 256 KiB, 32 levels, and 20,000 lines,
commas, colons and brackets: a recipe may come from anywhere, and reading it must take bounded time and memory.

ruamel.yaml's scanner and parser do the work; values are built here from its events, because its own constructor follows
aliases, honours tags and knows dates.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

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
    """SourcePlace of a value: a file and its line, or (line 0) an option of the command line."""

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

    #: Keys that the command line set; they are the likelier culprits.
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


def _events(text: str) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())[:200]
        line = mark.line + 1 if mark else 1
        if "${" in "".join(text.splitlines()[line - 1 : line]):
            problem += "; put what has ${..} in quotes"
        if "not allowed here" in problem:
            problem += " (is this line, or the one before, indented as it should be?)"
        raise Unreadable(line, f"not YAML: {problem}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(line, "not YAML: a control character; remove it") from None
    except YAMLError as error:
        raise Unreadable(1, f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except (ValueError, OverflowError) as error:  # "\UFFFFFFFF": no such character
        raise Unreadable(1, f"not YAML: {str(error)[:200]}") from None


def _require_plain(event: Any) -> None:
    line = event.start_mark.line + 1
    if type(event).__name__ == "AliasEvent":
        raise Unreadable(line, "an alias (*name); write the value out")
    if event.tag is not None:
        raise Unreadable(line, f"a tag ({str(event.tag)[:40]!r}); leave it out")


class _Builder:
    """Builds plain values from the parser's events, and notes the place of each."""

    def __init__(self, events: Iterator[Any], origin: str) -> None:
        self.document = Document(None, {(): SourcePlace(origin, 1)})
        self._events = events
        self._origin = origin

    def build(self) -> None:
        documents = 0
        for event in self._events:
            line, kind = event.start_mark.line + 1, type(event).__name__
            if kind == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise Unreadable(line, "a second document (---); a recipe is one")
                if event.version not in (None, (1, 2)):
                    raise Unreadable(
                        line, "another version of YAML; recipes are YAML 1.2, so leave %YAML out"
                    )
            elif kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                self.document.data = self._value(event, (), is_kept=True)

    def _value(self, event: Any, path: Path, *, is_kept: bool) -> Any:
        """Return the value that begins with this event. ``is_kept``: False under a key that was there already."""
        line, kind = event.start_mark.line + 1, type(event).__name__
        _require_plain(event)
        if is_kept:
            self.document.places.setdefault(path, SourcePlace(self._origin, line))
        if kind == "ScalarEvent":
            return self._scalar(event, path, line)
        if len(path) >= MAX_DEPTH:
            raise Unreadable(
                line,
                f"nested more than {MAX_DEPTH} levels deep; write the values nearer to the top",
            )
        if kind == "MappingStartEvent":
            return self._mapping(path, is_kept)
        items: list[Any] = []
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            items.append(self._value(event, (*path, len(items)), is_kept=is_kept))
        return items

    def _mapping(self, path: Path, is_kept: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            line, key = event.start_mark.line + 1, self._key(event)
            here = (*path, key)
            is_new = key not in found
            if is_kept and is_new:
                self.document.places[here] = SourcePlace(self._origin, line)
            elif is_kept:
                earlier = self.document.places[here].line
                self._complain(
                    here, line, f"this key is in line {earlier} already; leave one of them out"
                )
            value = self._value(next(self._events), here, is_kept=is_kept and is_new)
            found.setdefault(key, value)
        return found

    def _key(self, event: Any) -> str:
        line, kind = event.start_mark.line + 1, type(event).__name__
        _require_plain(event)
        if kind != "ScalarEvent":
            raise Unreadable(line, "a list or map as a key; a key is plain text")
        text: str = event.value
        if text == "<<":
            raise Unreadable(line, "a merge key (<<); write the keys out")
        if not _is_unicode(text):
            raise Unreadable(
                line, "a key with half of a surrogate pair, which is not a character; remove it"
            )
        if len(text) > MAX_KEY:
            raise Unreadable(line, f"a key of more than {MAX_KEY} characters; shorten it")
        return text

    def _scalar(self, event: Any, path: Path, line: int) -> Any:
        value, problem = resolve(event.value) if not event.style else (event.value, "")
        if isinstance(value, str) and not _is_unicode(value):
            value, problem = "", "half of a surrogate pair is not a character; remove it"
        if problem:
            self._complain(path, line, problem)
            self.document.unusable.add(path)
        return value

    def _complain(self, path: Path, line: int, message: str) -> None:
        self.document.problems.append(Problem(SourcePlace(self._origin, line), path, message))


def resolve(text: str) -> tuple[str | int | float | bool | None, str]:
    """Return the value of a plain (unquoted) scalar, and its problem (empty if it has none)."""
    if text in _WORDS:
        return _WORDS[text], ""
    if _INT.fullmatch(text):
        if len(text) > 30:  # more digits than any number we take, fewer than int() chokes on
            return 0, "a whole number of more than 64 bits"
        value = int(text) if text[:2] not in ("0o", "0x") else int(text, 0)
        return (
            (value, "") if abs(value) <= INT_LIMIT else (0, "a whole number of more than 64 bits")
        )
    if _FLOAT.fullmatch(text):
        number = float(text)
        return (
            (number, "")
            if abs(number) < float("inf")
            else (0.0, f"{text[:40]} is too large for a number")
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
    text = json.dumps(value, allow_nan=False, default=list)
    return re.sub(
        r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})",
        lambda pair: f"\\U{_code_point(int(pair[1], 16), int(pair[2], 16)):08x}",
        text,
    )


def _code_point(high: int, low: int) -> int:
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)

"""YAML read into a ``Document``, plain values with the line of every key.

The rules are YAML 1.2's core schema: ``1e-4`` is a number, ``no`` is text, ``010`` is ten. A key twice, a tag, and a
number that is not finite or has more than 64 bits are problems. ruamel.yaml reads the text into nodes; values are built
here, because its own constructor honours tags, knows dates, and stops at the first problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from gpusched.errors import InputError
from gpusched.recipe.messages import Path
from gpusched.space.forms import INT_LIMIT
from gpusched.text import nearest, printable

_TAGS = "tag:yaml.org,2002:"

#: Values for readers of YAML 1.1, as those of other tools are, and for Python. As text each is true to a script.
_MEANT = {**dict.fromkeys(("yes", "no", "on", "off"), "true or false"), "None": "null"}

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

    def place(self, path: Path) -> SourcePlace:
        """Return the place of a key: an override of it or inside it, its line, or the nearest map around it."""
        for inner, place in self.places.items():
            if path and not place.line and inner[: len(path)] == path:
                return place
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
    """Not YAML: nothing more can be said about it."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(message)


def read_text(path: FilePath) -> str:
    """Return the text of a recipe file. Raises InputError."""
    name = printable(str(path)[:300])
    if path.suffix == ".py":
        example = f"script: {printable(path.name[:100])}"
        raise InputError(f"{name}: is a Python script; give the recipe that names it ({example})")
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{name}: no such file{_hint(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder; name the recipe inside it") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: not UTF-8 text (byte {error.start})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be read: {reason}") from None


def _hint(path: FilePath) -> str:
    """Name the recipe beside the missing one that was probably meant."""
    folder = path.parent
    try:
        found = [entry for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    names = {entry.stem: entry.name for entry in sorted(found)}
    meant = nearest(path.stem, names, 0.75)
    return f"; did you mean {folder / names[meant]}?" if meant else ""


def read_yaml(text: str, origin: str, path: Path = ()) -> Document:
    """Parse a document, or the value of a key; raises Unreadable. Keys twice and bad numbers are in ``problems``."""
    builder = _Builder(origin)
    try:
        builder.document.data = builder.value(_root(text), path)
    except RecursionError:
        raise Unreadable(
            1, "not YAML: nested too deep, or an alias (*name) inside itself"
        ) from None
    return builder.document


def _root(text: str) -> Any:
    """Return the node of the whole document; None for an empty one. Raises Unreadable."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).compose(text)
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
    except (YAMLError, ValueError, OverflowError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise Unreadable(line, f"not YAML: {' '.join(str(error).split())[:200]}") from None


class _Builder:
    """Builds plain values from nodes, and notes the place of each."""

    def __init__(self, origin: str) -> None:
        self.document = Document(None, {(): SourcePlace(origin, 1)})
        self._origin = origin

    def value(self, node: Any, path: Path) -> Any:
        """Return the value of a node."""
        if node is None:
            return None
        self.document.places.setdefault(path, self._place(node))
        if not str(node.tag).startswith(_TAGS):
            self.document.complain(path, f"a tag ({str(node.tag)[:40]}); leave it out")
        if node.id == "sequence":
            return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
        if node.id == "mapping":
            return self._mapping(node, path)
        try:
            meant = _MEANT.get(node.value) or _MEANT.get(node.value.lower())
            if path[:1] == ("space",) and not node.style and meant:
                raise ValueError(f"{node.value} is text; write {meant}, or put it in quotes")
            return node.value if node.style else scalar(str(node.tag), node.value)
        except ValueError as error:
            self.document.complain(path, str(error))
            return None

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise Unreadable(
                    key_node.start_mark.line + 1, "a list or map as a key; a key is plain text"
                )
            key = key_node.value
            here = (*path, key)
            if key in found:
                line = self.document.places[here].line
                earlier = f"this key is in line {line} already; leave one of them out"
                self.document.problems.append(Problem(self._place(key_node), here, earlier))
                continue
            self.document.places[here] = self._place(key_node)
            found[key] = self.value(value_node, here)
        return found

    def _place(self, node: Any) -> SourcePlace:
        return SourcePlace(self._origin, node.start_mark.line + 1)


def scalar(tag: str, text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar, by the tag that its form gives it. Raises ValueError."""
    match tag.removeprefix(_TAGS):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            # More digits than any number here has, fewer than int() chokes on.
            base = 0 if text.strip("+-")[1:2] in ("x", "o", "b") else 10
            value = int(text, base) if len(text) < 80 else INT_LIMIT + 1
            if abs(value) > INT_LIMIT:
                raise ValueError("a whole number of more than 64 bits")
            return value
        case "float":
            if text.strip("+-.").lower() in ("inf", "nan"):
                raise ValueError(f"{text}: a number in a recipe must be finite")
            return float(text)
        case _:  # dates and other forms are text here
            return text

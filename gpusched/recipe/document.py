"""A recipe as read: plain values, the place where each was written, and their problems."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gpusched.text import printable

Path = tuple[str | int, ...]
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

"""Hyperparameters as a script sees them: ``hp.lr``, ``hp["lr"]``, nested ``hp.opt.momentum``; read-only.

Under gpusched they come from the trial's ``hparams.json``; alone and under plain torchrun from the command line, where
``--opt.momentum 0.9`` sets ``hp.opt.momentum``. The command line is left as it is, so that a script may parse it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import cast

from gpusched.errors import InputError
from gpusched.text import did_you_mean, flat, nearest

_OPTION = re.compile(r"--([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)(?:=(.*))?$", re.DOTALL)
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "none": None}


class HParams(Mapping[str, object]):
    """A mapping whose keys are attributes too, except where a key is named like a method of mappings."""

    __slots__ = ("_path", "_read", "_values")

    def __init__(
        self, values: Mapping[str, object], read: set[str] | None = None, path: str = ""
    ) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_read", set() if read is None else read)
        object.__setattr__(self, "_path", path)

    def __getitem__(self, name: str) -> object:
        value, path = self._values[name], f"{self._path}{name}"
        if isinstance(value, Mapping):
            return HParams(value, self._read, f"{path}.")
        self._read.add(path)
        return value

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return those of these dotted names that no code has read."""
        return sorted(set(names) - self._read)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]  # any type: what the recipe says
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self._values) or "none"
            raise AttributeError(
                f"no hyperparameter {name!r}{did_you_mean(name, self._values)} (there are: {known}). The recipe's "
                f"space names them; alone, --{name} on the command line or a default, gpusched.init({{{name!r}: ..}})"
            ) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"hyperparameters cannot be changed ({name} = {value!r}): take a copy, dict(trial.hparams)"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"HParams({self._values!r})"

    def __reduce__(self) -> tuple[type[HParams], tuple[dict[str, object]]]:
        return HParams, (self.as_dict(),)

    def as_dict(self) -> dict[str, object]:
        """Plain nested dictionaries, a copy."""
        self._read.update(f"{self._path}{name}" for name, _ in flat(self._values))
        copy: dict[str, object] = json.loads(json.dumps(self._values))
        return copy


def merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """``base`` with the values of ``over``, key by key down the nesting."""
    result = dict(base)
    for name, value in over.items():
        before = result.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[name] = merged(before, value)
        else:
            result[name] = value
    return result


def from_command_line(
    arguments: Sequence[str], defaults: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Read ``--name value``, ``--name=value`` and ``--flag``; anything else is the script's own business.

    With ``defaults`` the result has all of them, a value must have its default's type, and an option that looks like a
    misspelt name of theirs is an error. All problems are raised at once.

    Raises:
        InputError: One line a problem.
    """
    problems: list[str] = []
    given: dict[str, object] = {}
    known = dict(flat(defaults or {}))
    for name, text in _options(arguments):
        if name in known:
            value, problem = _fit(name, text, known[name])
        else:
            value, problem = _scalar(text), ""
            is_group = any(other.startswith(f"{name}.") for other in known)
            if known and not is_group and (meant := nearest(name, known, 0.75)):
                problem = f"--{name}: no such hyperparameter; did you mean --{meant}?"
        if problem:
            problems.append(problem)
        for part in reversed(name.split(".")):
            value = {part: value}
        given = merged(given, cast(dict[str, object], value))
    if problems:
        raise InputError("\n".join(problems))
    return merged(defaults or {}, given)


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    position = 0
    while position < len(arguments):
        match = _OPTION.match(arguments[position])
        position += 1
        if match is None:
            continue
        name, text = match[1].replace("-", "_"), match[2]
        following = arguments[position] if position < len(arguments) else None
        if text is None and following is not None and not _OPTION.match(following):
            text, position = following, position + 1
        yield name, text


def _scalar(text: str | None) -> object:
    """Read numbers, true, false, null, JSON lists and maps; else the text itself. A flag without a value is true."""
    word = "true" if text is None else text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for read in (int, float, json.loads):
        with suppress(ValueError, RecursionError):
            return cast(object, read(word))
    return text


def _fit(name: str, text: str | None, default: object) -> tuple[object, str]:
    """Return the value of an option as the type of ``default``, and a problem."""
    value = _scalar(text)
    if default is None or type(value) is type(default):
        return value, ""
    if isinstance(default, str) and text is not None:
        return text, ""
    if isinstance(default, float) and type(value) is int:
        return float(value), ""
    kind = type(default).__name__
    return value, f"--{name} {text or ''}: not of type {kind} (default {default!r})"

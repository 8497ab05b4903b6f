"""Hyperparameters as a script sees them: ``hp.lr``, ``hp["lr"]``, nested ``hp.opt.momentum``; read-only. And the
dictionary that is ``trial.state``.

Under gpusched they come from the trial's ``hparams.json``; alone and under plain torchrun from the command line, where
``--opt.momentum 0.9`` sets ``hp.opt.momentum``. The command line is left as it is, so that a script may parse it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from gpusched.errors import InputError
from gpusched.text import did_you_mean, flat, nearest
from gpusched.worker.endings import say

_OPTION = re.compile(r"--([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)(?:=(.*))?$", re.DOTALL)
STATE_NAME = "trial.state"
"""Name under which a checkpoint holds ``trial.state``."""
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "none": None}


class HParams(dict[str, Any]):
    """A dictionary that is read only, with its keys as attributes too, but for those named like its methods."""

    __slots__ = ("_path", "_read")

    def __init__(
        self, values: Mapping[str, object], read: set[str] | None = None, path: str = ""
    ) -> None:
        read = set() if read is None else read
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "_path", path)
        for name, value in values.items():
            if isinstance(value, Mapping):
                value = HParams(value, read, f"{path}{name}.")
            super().__setitem__(name, value)

    # All that reads values goes by ``__getitem__``: with an ``__iter__`` of its own, ``dict(hp)`` and ``**hp`` too.

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if not isinstance(value, HParams):
            self._read.add(f"{self._path}{name}")
        return value

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    get, items, values = Mapping.get, Mapping.items, Mapping.values  # type: ignore[assignment]

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return those of these dotted names that no code has read."""
        return sorted(set(names) - self._read)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "none"
            raise AttributeError(
                f"no hyperparameter {name!r}{did_you_mean(name, self.keys())} (there are: {known}). The recipe's "
                f"space names them; alone, --{name} on the command line or a default, gpusched.init({{{name!r}: ..}})"
            ) from None

    def _refuse(self, *_: object, **_named: object) -> Any:
        raise AttributeError("hyperparameters cannot be changed: take trial.hparams.copy()")

    def copy(self) -> dict[str, Any]:
        """Return a plain dictionary, with plain ones in it."""
        return {k: v.copy() if isinstance(v, HParams) else v for k, v in self.items()}

    __setattr__ = __setitem__ = __delitem__ = __ior__ = update = _refuse
    clear = pop = popitem = setdefault = _refuse

    def __reduce__(self) -> tuple[type[HParams], tuple[dict[str, Any]]]:
        return HParams, (dict(self),)


class PlainState(dict[str, Any]):
    """A dictionary of plain values that is saved with every checkpoint: counters, running means, what was logged last.

    Values are numbers, strings, None, lists, tuples, sets, deques, dictionaries, numpy arrays or tensors; anything else
    raises TypeError when a checkpoint is saved, and the message says which. Tensors come back on the CPU.
    """

    #: Names that the script has set before, and that the checkpoint lacks, stay.
    state_dict, load_state_dict = dict.copy, dict.update


def merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Return ``base`` with the values of ``over``, key by key down the nesting."""
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

    With ``defaults`` the result has all of them, and a value must have its default's type. An option that looks like a
    misspelt name of theirs is told: it may be the script's own, ``--beta2`` beside ``--beta1``.

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
                say(f"--{name} is none of the defaults of gpusched.init(); did you mean --{meant}?")
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

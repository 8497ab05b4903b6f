"""Classes of a user's own: ``mine.py:MyPolicy`` in a recipe, or an entry point of an installed package.

For every seam that a third party may fill (policies, samplers, simulated workloads). The file is loaded under a name
of its own; its folder is added to the end of ``sys.path``, so that the file may import its neighbours.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from gpusched.errors import InputError


def is_file(name: str) -> bool:
    """Tell whether ``name`` means a class in a file: ``mine.py:MyPolicy``."""
    return ".py:" in name


def absolute(name: str, folder: Path) -> str:
    """Return ``name`` with its file's path made absolute from ``folder``; other names as they are."""
    if not is_file(name):
        return name
    path, _, attribute = name.rpartition(":")
    return f"{(folder / Path(path).expanduser()).resolve()}:{attribute}"


@cache
def installed(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a group by name, in the order of their names."""
    return {found.name: found for found in sorted(metadata.entry_points(group=group))}


def load(name: str, group: str, base: type[Any]) -> type[Any]:
    """Return the class that ``name`` means: in a file (with an absolute path), or an entry point of ``group``.

    Raises KeyError for an unknown name, and InputError for a class that cannot be loaded or is not a ``base``.
    """
    found = _from_file(name) if is_file(name) else _from_package(name, group)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{name} is not a subclass of {base.__module__}.{base.__name__}")
    if inspect.isabstract(found):
        missing = " and ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise InputError(f"{name} does not define {missing}, which {base.__name__} asks for")
    return found


def _from_package(name: str, group: str) -> object:
    entry = installed(group)[name]
    try:
        return entry.load()
    except Exception as error:
        raise InputError(f"entry point {name} of {group}: {_first_cause(error, '')}") from error


def _from_file(name: str) -> object:
    path, _, attribute = name.rpartition(":")
    loaded = module(Path(path))
    try:
        return getattr(loaded, attribute)
    except AttributeError:
        found = [one for one in vars(loaded).values() if isinstance(one, type)]
        classes = [one.__name__ for one in found if one.__module__ == loaded.__name__]
        there = f"it has {', '.join(classes)}" if classes else "it has no class"
        raise InputError(f"{path} has no class {attribute}; {there}") from None


@cache
def module(path: Path) -> ModuleType:
    """Import a user's file, once. Raises InputError with the line at which that failed."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    # Several files may have the same name; dataclasses look their module up by name.
    name = f"gpusched_file_{zlib.crc32(bytes(path)):08x}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: cannot be imported; its name must end in .py")
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(found)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(_first_cause(error, str(path))) from error
    return found


def option_problems(kind: type[Any], options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield options that a class does not take, or that it needs, each with what to do.

    Options are arguments of the class behind the first, which gpusched gives.
    """
    parameters = dict(list(inspect.signature(kind).parameters.items())[1:])
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [
        n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for option in options:
        if option not in known and not takes_any:
            yield option, f"unknown option; there are {', '.join(known) or 'none'}"
    for name in known:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            yield name, "is needed"


class BadAnswer(ValueError):
    """Raised for an answer that a hook must not give; the message follows the hook's name."""


def guard(
    made: Any, name: str, hooks: Iterable[str], check: Callable[..., Any] | None = None
) -> None:
    """Have methods of a user's object raise InputError, with the line that failed.

    ``check``: given a method's answer and arguments, return the answer to use. Raises BadAnswer.
    """

    def guarded(hook: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                answer = method(*arguments, **named)
                return answer if check is None else check(answer, *arguments, **named)
            except InputError:  # of another hook, which this one called
                raise
            except Exception as error:
                raise failure(type(made), name, hook, error) from error

        return call

    for hook in hooks:
        setattr(made, hook, guarded(hook, getattr(made, hook)))


def failure(kind: type[Any], name: str, hook: str, error: Exception) -> InputError:
    """Word that a method of a user's class failed, with the line, or that its answer cannot be used."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    line = _line(error, path)
    where = f"{path}:{line}" if line else name
    what = f"failed: {type(error).__name__}:" if not isinstance(error, BadAnswer) else "returned"
    return InputError(
        f"{where}: {hook} {what} {error}\n"
        "Mend it, then try again; 'gpusched resume' continues a search with the mended file"
    )


def _line(error: BaseException, path: str) -> int | None:
    """Return the line of the user's file in which an error came up."""
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == path), None)


def _first_cause(error: BaseException, path: str) -> str:
    """Say what went wrong while importing, and in which line of the user's file."""
    line = _line(error, path)
    where = f"{path}:{line}: " if path and line else f"{path}: " if path else ""
    return f"{where}cannot be imported: {type(error).__name__}: {error}"

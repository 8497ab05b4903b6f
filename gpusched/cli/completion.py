"""Completion in a shell, by argcomplete: ``eval "$(register-python-argcomplete gpusched)"``.

Imported where the shell asks, and never by a command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Collection, Iterable

from gpusched.cli.common import Command
from gpusched.errors import GpuschedError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths


def complete(commands: Collection[str], command: Callable[[str], Command]) -> None:
    """Print what may follow the words before the cursor, and exit. ``command`` loads the one of a name."""
    import argcomplete

    line, cursor = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    parser = argparse.ArgumentParser(prog="gpusched")
    _, name, *_ = (*line[:cursor].split(), "", "")
    if name in commands and not line[:cursor].endswith(name):
        # A command has a parser of its own, which does not know its name.
        start = line.index(name, line.index(" "))
        os.environ["COMP_LINE"] = line[:start] + line[start + len(name) :]
        os.environ["COMP_POINT"] = str(cursor - len(name))
        for add_argument in command(name).arguments:
            add_argument(parser)
    else:
        parser.add_argument("command", choices=[*commands])
    for action in parser._actions:
        if (completer := COMPLETERS.get(str(action.metavar))) is not None:
            action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _named(given: argparse.Namespace) -> ExperimentPaths:
    return find.find(getattr(given, "exp", None), find.runs_folder(given.dir))


def _searches(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    return [paths.root.name for paths in find.experiments(find.runs_folder(parsed_args.dir))]


def _trials(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    with contextlib.suppress(GpuschedError):
        return map(str, _named(parsed_args).trial_numbers)
    return ()


def _keys(action: argparse.Action, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """Return keys of a recipe for ``--set``, else those of the search's space."""
    from gpusched.driver.assemble import read_recipe
    from gpusched.recipe.recipe import keys
    from gpusched.space.space import parse_space

    names: Iterable[str] = keys()
    if not action.option_strings:
        names = ()
        with contextlib.suppress(GpuschedError):
            space = read_recipe(_named(parsed_args)).space
            names = [name for name, _ in parse_space(space).describe()]
    return [f"{name}=" for name in names]


#: By the word that stands for a value in the help.
COMPLETERS: dict[str, Callable[..., Iterable[str]]] = {
    "EXP": _searches,
    "TRIAL": _trials,
    "KEY=VALUE": _keys,
}

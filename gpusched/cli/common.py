"""Parts that several commands share: arguments (RECIPE, EXP, TRIAL, ``--json``), the experiment named, plain output."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths

if TYPE_CHECKING:
    from gpusched.recipe.recipe import Recipe

# ---------------------------------------------------------------- arguments

_RECIPE_OPTIONS = {
    "deadline": ("D", "how long the search may take, or until when: 90s, 10m, 1h30m, 18:30"),
    "devices": ("X", "auto, cpu, cpu:N, cuda, cuda:0,2, or GPU UUIDs"),
    "policy": ("P", "another policy than the recipe's"),
    "seed": ("N", "seed of the configurations and of training"),
}


def add_recipe(parser: argparse.ArgumentParser, *options: str) -> None:
    """Add RECIPE, these options that override a key of the recipe, ``--set`` and ``--dir``."""
    what = "YAML file that describes the search (- for standard input)"
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help=what)
    for name in options:
        metavar, told = _RECIPE_OPTIONS[name]
        parser.add_argument(f"--{name}", metavar=metavar, help=told)
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="set a key of the recipe, as in --set policy.R=27; may be repeated",
    )
    add_dir(parser)


def load_recipe(args: argparse.Namespace) -> Recipe:
    """Read the recipe with the options of ``add_recipe``. Raises InputError."""
    from gpusched.recipe.load import load_recipe

    flags = {name: getattr(args, name, None) for name in _RECIPE_OPTIONS}
    return load_recipe(args.recipe, args.overrides, **flags)


def add_experiment(parser: argparse.ArgumentParser, *, option: bool = False) -> None:
    """Add EXP as ``--exp``, unless ``option`` as a positional argument, too; and ``--dir``."""
    what = "the experiment: a folder, a name, or 'last' (the default)"
    parser.add_argument("--exp", metavar="EXP", help=what if option else argparse.SUPPRESS)
    if not option:
        parser.add_argument("exp", nargs="?", metavar="EXP", default=argparse.SUPPRESS, help=what)
    add_dir(parser)


def add_trial(parser: argparse.ArgumentParser) -> None:
    """Add TRIAL, EXP and ``--dir``."""
    parser.add_argument("trial", metavar="TRIAL", help="number of the trial, as in 'status'")
    add_experiment(parser)


def add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help=f"folder of the experiments (default: ${find.RUNS_VARIABLE} or runs)",
    )


def add_json(parser: argparse.ArgumentParser, what: str = "print one JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_detach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="do not stay to watch")


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE texts, each value as YAML. Raises InputError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"'{text}': write KEY=VALUE, as in lr=0.1")
        found[key] = _plain_yaml(value, text)
    return found


def read_yaml(path: Path) -> object:
    """Return what a YAML or JSON file holds. Raises InputError."""
    from gpusched.recipe.yaml import read_text

    return _plain_yaml(read_text(path), str(path))


def _plain_yaml(text: str, origin: str) -> object:
    from gpusched.recipe import yaml

    try:
        document = yaml.read_yaml(text, origin)
    except yaml.Unreadable as error:
        raise InputError(f"{origin}: {error}") from None
    if document.problems:
        raise InputError("\n".join(map(str, document.problems)))
    return document.data


# ---------------------------------------------------------------- experiments


def experiment(args: argparse.Namespace) -> ExperimentPaths:
    """Return the experiment that the arguments name. Raises InputError."""
    return find.find(args.exp, find.runs_folder(args.dir))


def prepare_trial_parser(parser: argparse.ArgumentParser) -> None:
    """Prepare the parser of a command that asks the daemon something of one trial."""
    add_trial(parser)
    add_json(parser)


def ask_of_trial(args: argparse.Namespace, verb: str) -> int:
    """Ask the daemon something of one trial and print the answer."""
    paths = experiment(args)
    number = session.trial_number(args.trial)
    answer = session.ask(paths, verb, trial=number)
    return tell(args, {"trial": number, "answer": answer}, answer)


def wait_for_end(paths: ExperimentPaths) -> None:
    """Wait until the experiment's daemon is gone."""
    while find.has_daemon(paths):
        time.sleep(0.05)


# ---------------------------------------------------------------- output


def tell(args: argparse.Namespace, data: Mapping[str, object], text: str) -> int:
    """Print ``data`` with ``--json``, else ``text``; return 0, as all is well."""
    if args.json:
        print_json(data)
    else:
        print(text)
    return 0


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def note(text: str) -> None:
    """Print a remark for people to stderr, so that stdout stays for data."""
    print(text, file=sys.stderr)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> str:
    """Return plain columns, two blanks apart; the columns named in ``right`` are right-aligned."""
    texts = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(cells, widths, head, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join(map(line, texts))


def paragraph(text: str, first: str = "", rest: str = "") -> str:
    """Return ``text`` as wide as the terminal, after ``first`` and then ``rest``; in a pipe one line."""
    if not sys.stdout.isatty():
        return first + text
    return textwrap.fill(
        text,
        max(40, shutil.get_terminal_size().columns),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )

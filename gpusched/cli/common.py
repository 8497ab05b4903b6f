"""Parts that several commands share: how a command is declared, its arguments, the experiment named, plain output."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths, TrialPaths

if TYPE_CHECKING:
    from gpusched.recipe.recipe import Recipe

_SAID = "gpusched: "

# ---------------------------------------------------------------- commands

T = TypeVar("T")
#: Adds one argument, or several, to a parser.
Argument = Callable[[Any], object]
Run = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: arguments, and a function whose docstring is the help."""

    arguments: Sequence[Argument]
    run: Run


#: Commands of the modules imported so far.
COMMANDS: dict[str, Command] = {}


def command(*arguments: Argument, lines: str = "") -> Callable[[Run], Run]:
    """Declare a command with the name of its function; ``lines``: what each line is about, if --json prints several."""

    each = f" for each {lines}, one a line" if lines else ""
    json = argument("--json", f"print one JSON object{each}")

    def declare(run: Run) -> Run:
        COMMANDS[run.__name__.rstrip("_")] = Command((*arguments, json), run)
        return run

    return declare


# ---------------------------------------------------------------- arguments


def argument(usage: str, meaning: str, **more: Any) -> Argument:
    """Declare an argument as its help shows it: ``--seed N`` takes a value, ``--all`` none, ``TRIAL`` stands alone."""
    words = usage.split()
    flags = [word.rstrip(",") for word in words if word.startswith("-")]
    if len(flags) < len(words):
        more.setdefault("metavar", words[-1])
    else:
        more.setdefault("action", "store_true")
    return lambda parser: parser.add_argument(*(flags or [usage.lower()]), help=meaning, **more)


def together(*arguments: Argument) -> Argument:
    """Declare several arguments as one."""
    return lambda parser: [add(parser) for add in arguments]


def settable(what: str) -> Argument:
    """Declare ``--set KEY=VALUE``; ``what`` words the keys."""
    meaning = f"set {what}; may be repeated"
    return argument("--set KEY=VALUE", meaning, action="append", default=[], dest="overrides")


def trial_number(text: str) -> int:
    """Read ``7``, ``0007`` or ``trial-7``. Raises InputError."""
    if (found := re.fullmatch(r"(?:trial[-_ ]*)?(\d{1,9})", text)) is None:
        raise InputError(
            f"'{text}' is not the number of a trial; 'gpusched status' lists the trials"
        )
    return int(found[1])


DIR = argument("--dir DIR", f"folder of the searches (default: ${find.RUNS_VARIABLE} or runs)")
DETACH = argument("--detach", "return at once; the search continues in the background")

EXPERIMENT = together(
    argument("EXP", "the search: a folder, a name, or 'last' (the default)", nargs="?"), DIR
)
TRIAL = together(
    argument("TRIAL", "number of the trial, as in 'status'", type=trial_number), EXPERIMENT
)

RECIPE = together(
    argument("RECIPE", "YAML file that describes the search", type=Path),
    argument("--deadline D", "how long the search may take, or until when: 90s, 10m, 1h30m, 18:30"),
    argument("--devices X", "auto, cpu, cpu:N, cuda, cuda:0,2, or GPU UUIDs"),
    argument("--cluster ADDRESS", "the nodes of a Ray cluster: auto, or HOST:PORT"),
    argument("--policy P", "another policy than the recipe's"),
    argument("--seed N", "seed of the configurations and of training"),
    settable("a key of the recipe, as in --set policy.R=27"),
    DIR,
)


def load_recipe(args: argparse.Namespace) -> Recipe:
    """Read the recipe with the options of ``RECIPE``. Raises InputError."""
    from gpusched.recipe.load import load_recipe

    names = ("deadline", "devices", "cluster", "policy", "seed")
    flags = {name: vars(args)[name] for name in names}
    return load_recipe(args.recipe, args.overrides, **flags)


def read_option(option: str, text: str, read: Callable[[str], T]) -> T:
    """Read the value of an option. Raises InputError with the option's name."""
    try:
        return read(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE texts, each value as YAML. Raises InputError."""
    from gpusched.recipe import yaml

    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"'{text}': write KEY=VALUE, as in lr=0.1")
        try:
            document = yaml.read_yaml(value, text)
        except yaml.Unreadable as error:
            raise InputError(f"{text}: {error}") from None
        if document.problems:
            raise InputError("\n".join(map(str, document.problems)))
        found[key] = document.data
    return found


# ---------------------------------------------------------------- experiments


def experiment(args: argparse.Namespace, *, running_first: bool = False) -> ExperimentPaths:
    """Return the experiment that the arguments name. Raises InputError. ``running_first``: as of ``find``."""
    return find.find(args.exp, find.runs_folder(args.dir), running_first=running_first)


def wait_for_end(paths: ExperimentPaths) -> None:
    """Wait until the search's daemon is gone."""
    while find.has_daemon(paths):
        time.sleep(0.05)


# ---------------------------------------------------------------- output


def tell(args: argparse.Namespace, data: object, text: str) -> int:
    """Print ``data`` with ``--json``, else ``text``; return exit code 0."""
    if args.json:
        print_json(data)
    else:
        print(text)
    return 0


def said(trial: TrialPaths) -> list[str]:
    """Return what gpusched has told the script of a trial, each text once, as the logs of its launches have it."""
    told: dict[str, None] = {}
    for launch in trial.incarnations:
        # Line by line: progress bars make a log long, and leave one line with what is said next.
        with suppress(OSError), trial.log(launch, 0, "err").open(errors="replace") as log:
            told |= dict.fromkeys(line.rstrip("\n").partition(_SAID)[2] for line in log)
    return [text for text in told if text]


def print_json(value: object) -> None:
    """Print a record, a mapping or a list as one line of JSON."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    print(json.dumps(plain, ensure_ascii=False))


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

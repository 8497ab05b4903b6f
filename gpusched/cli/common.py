"""What several commands share: the EXP argument, ``--json``, and plain tables."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.daemon import session
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """RECIPE, the file of a recipe."""
    what = "the recipe, a YAML file (- for standard input)"
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help=what)


def add_experiment(parser: argparse.ArgumentParser, *, option: bool = False) -> None:
    """EXP as a positional argument, or as ``--exp`` for commands that take a trial."""
    what = "a folder, a name, or 'last' (the default)"
    if option:
        parser.add_argument("--exp", metavar="EXP", help=what)
    else:
        parser.add_argument("exp", nargs="?", metavar="EXP", help=what)
    parser.add_argument("--dir", metavar="DIR", help="where experiments are (default: runs)")


def prepare_trial_parser(parser: argparse.ArgumentParser) -> None:
    """Of a command that asks the daemon something of one trial."""
    parser.add_argument("trial", metavar="TRIAL", help="number of the trial")
    add_experiment(parser, option=True)
    add_json(parser)


def ask_of_trial(args: argparse.Namespace, verb: str) -> int:
    """Ask it, and print what the daemon answers."""
    paths = experiment(args)
    number = session.trial_number(args.trial)
    answer = session.ask(paths, verb, trial=number)
    return tell(args, {"trial": number, "answer": answer}, answer)


def tell(args: argparse.Namespace, data: Mapping[str, object], text: str) -> int:
    """``data`` with ``--json``, else ``text``; 0, as all is well."""
    if args.json:
        print_json(data)
    else:
        print(text)
    return 0


def add_json(parser: argparse.ArgumentParser, what: str = "print one JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def experiment(args: argparse.Namespace) -> ExperimentPaths:
    """The experiment that the arguments name. Raises InputError."""
    return find.find(args.exp, find.runs_folder(args.dir))


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> str:
    """Plain columns, two blanks apart; the columns named in ``right`` are right-aligned."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *texts]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(cells, widths, head, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(head)), *(line(row) for row in texts)])


def paragraph(text: str, first: str = "", rest: str = "") -> str:
    """``text`` as wide as the terminal, after ``first`` and then ``rest``; in a pipe one line."""
    if not sys.stdout.isatty():
        return first + text
    columns = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def note(text: str) -> None:
    """A remark for people: to stderr, so that stdout stays for data."""
    print(text, file=sys.stderr)

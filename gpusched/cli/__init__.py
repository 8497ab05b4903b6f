"""The command line: ``gpusched COMMAND ...``; this is the front.

A command is a function, declared by ``common.command``, whose docstring is its help. Only the module of the command
that was asked for is imported, so that ``gpusched status`` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusched import __version__
from gpusched.errors import GpuschedError, InputError
from gpusched.text import did_you_mean

if TYPE_CHECKING:
    from gpusched.cli.common import Command

#: Commands by their purpose, each with its module and a line of help.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "search": {
        "run": ("run", "start a search and watch it"),
        "resume": ("run", "continue a search that was interrupted, or that is over"),
        "validate": ("validate", "check a recipe without running it"),
    },
    "look": {
        "watch": ("run", "live dashboard of a search"),
        "status": ("look", "trials, devices and the best so far"),
        "ls": ("look", "list searches"),
        "best": ("look", "the best model so far, and where its checkpoint lies"),
        "logs": ("afterwards", "what a trial printed"),
        "explain": ("look", "why a trial is where it is"),
        "whatif": ("simulate", "what more time would buy"),
    },
    "steer": {
        "pause": ("run", "pause a trial"),
        "unpause": ("run", "let a paused trial continue"),
        "deadline": ("run", "move the deadline"),
        "try": ("run", "start a configuration of your own next"),
        "stop": ("run", "stop a search, or one trial, in good order"),
        "cancel": ("run", "end a search now"),
    },
    "afterwards": {
        "report": ("afterwards", "HTML page with plots"),
        "export": ("afterwards", "every report as CSV or JSON lines"),
        "gc": ("afterwards", "remove checkpoints that nothing needs any more"),
    },
    "this machine": {
        "doctor": ("machine", "check driver, GPUs, torch, shared memory and disk"),
        "gpus": ("machine", "GPUs, their state and who holds them"),
        "simulate": ("simulate", "compare policies in virtual time, without any GPU"),
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}


def command(name: str) -> Command:
    """Return a command, with its module imported."""
    importlib.import_module(f"gpusched.cli.{COMMANDS[name][0]}")
    from gpusched.cli import common

    return common.COMMANDS[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Every expected error is one message on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without the letters of a script's log
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _dispatch(arguments)
        # A reader that has gone is met here, not while the interpreter ends.
        print(end="", flush=True)
        return code
    except GpuschedError as error:
        if debug:
            raise
        problems = getattr(error, "problems", ())
        several = f"{len(problems)} problems in the recipe:\n" if len(problems) > 1 else ""
        print(f"gpusched: {several}{error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("gpusched: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as in ``gpusched logs | head``.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        why = (
            f"internal error: {type(error).__name__}: {error}\n"
            "This is a defect of gpusched; run the command again with --debug for the traceback."
        )
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"{error.strerror}; make room and run the command again"
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            why = f"{error.filename}: {error.strerror}; run this as a user who may write there"
        print(f"gpusched: {why}", file=sys.stderr)
        return 1


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "help"
    if name in ("-V", "--version"):
        print(f"gpusched {__version__}")
        return 0
    if name in ("-h", "--help", "help"):
        if name == "help" and arguments[1:]:
            return _dispatch([arguments[1], "--help"])
        print(_help())
        return 0
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or "; 'gpusched --help' lists all commands"
        raise InputError(f"unknown command '{name}'{hint}")
    if sys.platform != "linux":
        raise InputError(f"it needs Linux 5.3 or newer; this system is {sys.platform}")
    found = command(name)
    parser = _Parser(
        prog=f"gpusched {name}",
        description=inspect.cleandoc(found.run.__doc__ or "").replace("``", "'"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add_argument in found.arguments:
        add_argument(parser)
    # -10m is a value, not an option; newer versions of Python have it so.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    # The search's name may stand behind an option: ``logs 3 -f NAME``.
    return found.run(parser.parse_intermixed_args(arguments[1:]))


class _Parser(argparse.ArgumentParser):
    """argparse, whose messages point to the help and name the option that was meant."""

    def error(self, message: str) -> None:  # type: ignore[override]
        told = message.removeprefix("argument ")
        if found := re.fullmatch(r"unrecognized arguments: (.*)", message):
            told = f"one argument too many: {found[1]}; leave that out"
            word = found[1].split()[0].partition("=")[0]
            if word.startswith("-"):
                hint = did_you_mean(word, self._option_string_actions, 0.7)
                told = f"unknown option {word}{hint}"
            elif "=" in found[1] and "--set" in self._option_string_actions:
                right = " ".join(f"--set {word}" for word in found[1].split())
                told = f"{found[1]}: a value of the recipe is given as {right}"
        raise InputError(f"{told}\n'{self.prog} --help' shows the options")


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "gpusched: the best-trained model at the deadline, on this machine's GPUs",
        "",
        "usage: gpusched COMMAND [OPTIONS]     'gpusched COMMAND --help' tells more",
    ]
    for group, commands in GROUPS.items():
        lines += ["", group]
        lines += [f"  {name:<{width}}  {line}" for name, (_, line) in commands.items()]
    lines += [
        "",
        "Most commands take EXP, a search: a folder, a name, or 'last' (the default).",
        "All take --json, --debug (tracebacks) and --help; 'gpusched --version' the version.",
    ]
    return "\n".join(lines)

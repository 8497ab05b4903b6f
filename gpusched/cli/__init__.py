"""The command line: ``gpusched COMMAND ...``. One command a file; this is the front.

A command is a module with a docstring (its help), ``prepare_parser(parser)`` and ``run(args) -> int``. Only the module
of the command that was asked for is imported, so that ``gpusched status`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from gpusched import __version__
from gpusched.errors import GpuschedError, InputError
from gpusched.text import did_you_mean

#: command -> what it does, in the order of the help.
COMMANDS: dict[str, str] = {
    "run": "start an experiment and watch it",
    "resume": "go on with an experiment whose daemon is gone",
    "watch": "the live dashboard of a running (or finished) experiment",
    "status": "where an experiment stands",
    "ls": "the experiments there are",
    "best": "the best model so far, and where its checkpoint lies",
    "logs": "what a trial printed",
    "explain": "why a trial is where it is",
    "pause": "pause a trial",
    "unpause": "let a paused trial go on",
    "stop": "stop an experiment (or one trial) in good order; the best model stays",
    "cancel": "end an experiment now",
    "deadline": "move the deadline of a running experiment",
    "validate": "check a recipe without running it",
    "profile": "measure how a trial scales, s(a), and what a resize costs, To",
    "gpus": "the devices, their state and who holds them",
    "doctor": "check this machine: driver, memory, limits, disk",
    "simulate": "run policies in virtual time",
    "report": "an HTML report of an experiment, with plots",
    "export": "the reports of an experiment as CSV, JSON or Parquet",
    "gc": "remove checkpoints that nothing needs any more",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Every expected error is one message on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        return _dispatch(arguments)
    except GpuschedError as error:
        if debug:
            raise
        print(f"gpusched: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("gpusched: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (``gpusched logs | head``): no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        print(
            f"gpusched: internal error: {type(error).__name__}: {error}\n"
            "This is a defect of gpusched; run the command again with --debug for the traceback.",
            file=sys.stderr,
        )
        return 1


def _dispatch(arguments: list[str]) -> int:
    available = [name for name in COMMANDS if importlib.util.find_spec(f"gpusched.cli.{name}")]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(available))
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"gpusched {__version__}")
        return 0
    name = arguments[0]
    if name not in available:
        hint = did_you_mean(name, available)
        raise InputError(
            f"no command is called '{name}'{hint or ';'} 'gpusched --help' lists them all"
        )
    module = importlib.import_module(f"gpusched.cli.{name}")
    parser = _Parser(prog=f"gpusched {name}", description=_description(module))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.prepare_parser(parser)
    code: int = module.run(parser.parse_args(arguments[1:]))
    return code


def _description(module: ModuleType) -> str:
    return (module.__doc__ or "").strip()


class _Parser(argparse.ArgumentParser):
    """argparse, with our kind of message: what is wrong, and where the help is."""

    def error(self, message: str) -> None:  # type: ignore[override]
        hint = self._nearest(message.removeprefix("unrecognized arguments: "))
        raise InputError(f"{message}{hint}\n'{self.prog} --help' shows how to call it")

    def _nearest(self, words: str) -> str:
        """A hint for the first of these words that is much like an option."""
        for word in words.split():
            name = word.partition("=")[0]
            hint = did_you_mean(name, self._option_string_actions, 0.7)
            if name.startswith("--") and name not in self._option_string_actions and hint:
                return hint
        return ""


def _help(available: Sequence[str]) -> str:
    width = max(map(len, available), default=0)
    lines = [
        "gpusched: the best-trained model at the deadline, on this machine's GPUs",
        "",
        "usage: gpusched COMMAND [OPTIONS]     (gpusched COMMAND --help tells more)",
        "",
        *(f"  {name:<{width}}  {COMMANDS[name]}" for name in available),
        "",
        "  --version, --debug (show tracebacks)",
        "",
        "EXP names an experiment: a folder, a name, or 'last' (the default).",
    ]
    return "\n".join(lines)

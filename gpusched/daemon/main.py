"""The daemon's process: ``python -m gpusched.daemon.main FOLDER [--resume]``, and the word that it leaves if it fails.

Prints go to ``daemon.log``; the command that started the process is told its fate through ``--ready-fd``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpusched.daemon.daemon import Daemon
from gpusched.errors import Fenced, GpuschedError
from gpusched.folder.files import write_all, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import first_line


class _Unfailing(io.FileIO):
    """Standard output on a disk that may refuse: drops what cannot be written, as the journal has all that matters."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            write_all(self.fileno(), data)
        return len(data)


def write_unfailingly() -> None:
    """Keep ``print`` from ever raising: a disk that refuses a line ends no search."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_Unfailing(descriptor, "wb", closefd=False)),
            "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for descriptor in (1, 2)
    )


def _given_environment(descriptor: int | None) -> dict[str, str]:
    """Values of the recipe's ``env`` that are not on the disk."""
    if descriptor is None:
        return {}
    with os.fdopen(descriptor, "rb") as memory:
        given: dict[str, str] = json.loads(memory.read())
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the daemon's process. Tells its fate at the start through ``--ready-fd``."""
    parser = argparse.ArgumentParser(prog="python -m gpusched.daemon.main")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--salvage", action="store_true")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--env-fd", type=int)
    parser.add_argument("--wish", type=json.loads, help="limits to go on with (daemon/resuming.py)")
    parser.add_argument("--executor", help="a package beside executors/local")
    args = parser.parse_args(argv)
    os.umask(0o077)
    write_unfailingly()

    def ready(message: dict[str, Any]) -> None:
        if args.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(args.ready_fd, json.dumps(message).encode() + b"\n")
                os.close(args.ready_fd)
            args.ready_fd = None

    paths = ExperimentPaths(args.folder.resolve())
    daemon: Daemon | None = None

    def leave_word(why: str, exit_code: int) -> int:
        """Write into the folder why this daemon failed, for the commands that watch; return the exit code."""
        if daemon is not None:  # else another daemon may have the folder
            word = {"why": first_line(why), "exit_code": exit_code}
            with contextlib.suppress(OSError):
                write_durably(paths.failure, json.dumps(word).encode())
        return exit_code

    try:
        daemon = Daemon(
            paths,
            resuming=args.resume,
            salvage=args.salvage,
            environment=_given_environment(args.env_fd),
            wish=args.wish,
            executor=args.executor,
        )
        daemon.run(resuming=args.resume, ready=ready)
    except Fenced as error:
        # Not even its socket is ours any more. Descriptors end with the process; nothing is closed in good order.
        print(f"{time.strftime('%F %T')} {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    except GpuschedError as error:
        print(f"{time.strftime('%F %T')} {error}", file=sys.stderr, flush=True)
        ready({"error": str(error), "exit_code": error.exit_code})
        return leave_word(str(error), error.exit_code)
    except BaseException as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        ready({"error": f"the daemon failed: {why}", "exit_code": 1})
        return leave_word(why, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

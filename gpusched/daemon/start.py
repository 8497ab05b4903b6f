"""The start of a search: make its folder, start its daemon in the background; and both ends of that start.

The daemon is a session of its own with nothing of the terminal: closing it ends nothing. It says over a pipe
(``--ready-fd``) whether it came up; what it says is raised here, in the user's terminal. Its prints go to
``daemon.log``, and if it fails it leaves a word in the folder.

    python -m gpusched.daemon.start FOLDER [--resume]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.daemon import provenance
from gpusched.driver.assemble import Beginning, fresh_folder, write_recipe
from gpusched.errors import Fenced, GpuschedError, InputError
from gpusched.folder import files
from gpusched.folder.files import last_line, read_json, write_durably, write_unfailingly
from gpusched.folder.find import ways
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.local_disk import Home
from gpusched.processes.identity import require_pidfds
from gpusched.recipe.recipe import Recipe
from gpusched.text import first_line

if TYPE_CHECKING:
    from gpusched.daemon.daemon import Daemon


def make_experiment(
    runs: Path, recipe: Recipe, began: Beginning, source: Path | None = None
) -> ExperimentPaths:
    """Make a new folder ``<name>-<time>`` with everything the daemon starts from.

    ``source``: the recipe's file. Raises InputError if it cannot be made.
    """
    recipe.with_environment()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(began.wall_s))
    try:
        paths = fresh_folder(runs, f"{recipe.name}-{stamp}")
        provenance.record(paths, Path(recipe.script), source)
        write_recipe(paths, recipe, began)
    except OSError as error:
        raise InputError(
            f"{runs}: a search cannot be written here ({error.strerror}); '--dir' names another folder"
        ) from None
    return paths


def start_daemon(
    paths: ExperimentPaths,
    *,
    resume: bool = False,
    wish: Mapping[str, object] | None = None,
    say: Callable[[str], None] | None = None,
) -> int:
    """Start the daemon and wait until it serves; return its pid. Raises what kept it from coming up.

    ``wish``: limits that a resumed search continues with (``resuming``). ``say`` is told what a person is to know
    before the search starts, such as what the start waits for.
    """
    require_pidfds()
    of = read_json(paths.resolved) or {}
    named = [(key, Path(of.get(key, ""))) for key in ("script", "cwd")]
    gone = [f"{key} {path}" for key, path in named if path.is_absolute() and not path.exists()]
    if resume and gone:  # every trial would wait for the script, or fail
        cure = f"put it back, or correct its path in {paths.resolved}, and do this again"
        raise InputError(f"not there any more: {', '.join(gone)}; {cure}")
    options = ["--resume"] * resume
    options += ["--wish", json.dumps(wish)] if wish else []
    began = provenance.recorded(paths).get("environment", {})
    if say is not None and (names := sorted(began.keys() - os.environ.keys())):
        say(f"taken over from the start of the search, as it is not set here: {', '.join(names)}")
    with _interrupts_wait() as interrupted:
        process, reading = _spawn(paths, options)
    message: dict[str, Any] = {}
    try:
        if interrupted:
            raise KeyboardInterrupt
        with os.fdopen(reading, "rb") as pipe:
            for line in pipe:
                message = json.loads(line)
                if "say" not in message:
                    break
                if say is not None:
                    say(message["say"])
    except KeyboardInterrupt:
        if not resume:
            _take_back(process, paths)
            raise
        raise GpuschedError(
            f"interrupted; {paths.root.name} continues: {ways(paths)}", exit_code=130
        ) from None
    if not {"ok", "error"} & message.keys():
        code = process.wait()
        why = last_line(paths.log) or "it said nothing"
        raise GpuschedError(f"the daemon ended at once (exit code {code}): {why}")
    if "error" in message:
        process.wait()
        raise InputError(message["error"], exit_code=message["exit_code"])
    return int(message["ok"])


def _spawn(paths: ExperimentPaths, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the daemon's process; return it, and the descriptor on which it tells how its start went."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "gpusched.daemon.start", str(paths.root), *options]
    command += ["--ready-fd", str(writing)]
    log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    environment = dict(os.environ)
    # What is relative in it is so to the user's folder, which is not the daemon's.
    if modules := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = files.absolute_each(modules, Path.cwd())
    with suppress(OSError):  # a full disk
        environment = provenance.environment(paths, environment)
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=paths.root,
            start_new_session=True,
            pass_fds=(writing,),
        )
    finally:
        for descriptor in (log, writing):
            os.close(descriptor)
    return process, reading


@contextmanager
def _interrupts_wait() -> Iterator[list[int]]:
    """Put off Ctrl-C: the list tells whether one came meanwhile. (A mask would be inherited by the child.)"""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _take_back(process: subprocess.Popen[bytes], paths: ExperimentPaths) -> None:
    """End the daemon and the search: Ctrl-C came before there was anything to stop. A second one does not wait."""
    process.terminate()
    process.wait()
    if not paths.final_view.exists():
        discard(paths)


def discard(paths: ExperimentPaths) -> None:
    """Remove the folder of a search that never began."""
    Home(paths.journal, is_wanted=False).remove()
    shutil.rmtree(paths.root, ignore_errors=True)


# ---------------------------------------------------------------- the daemon's process


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the daemon's process. Tells its fate at the start through ``--ready-fd``."""
    parser = argparse.ArgumentParser(prog="python -m gpusched.daemon.start")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--ready-fd", type=int, required=True)
    limits = "limits to continue with (daemon/resuming.py)"
    parser.add_argument("--wish", type=json.loads, default={}, help=limits)
    args = parser.parse_args(argv)
    files.be_private()
    write_unfailingly()
    line = os.fdopen(args.ready_fd, "wb", buffering=0)

    def ready(message: dict[str, Any]) -> None:
        with suppress(OSError, ValueError):  # nobody listens any more, or all is told
            line.write(json.dumps(message).encode() + b"\n")
            if "say" not in message:
                line.close()

    paths = ExperimentPaths(args.folder.resolve())
    daemon: Daemon | None = None

    def leave_word(why: str, exit_code: int) -> int:
        """Write into the folder why this daemon failed, for the commands that watch; return the exit code."""
        if daemon is not None:  # else another daemon may have the folder
            word = {"why": first_line(why), "exit_code": exit_code}
            with suppress(OSError):
                write_durably(paths.failure, json.dumps(word).encode())
        return exit_code

    try:
        from gpusched.daemon.daemon import Daemon  # the daemon's process alone needs it

        daemon = Daemon(paths, is_resume=args.resume, wish=args.wish)
        daemon.run(ready)
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

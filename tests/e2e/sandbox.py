"""The real command line, a real daemon, real process groups over gloo, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import gpusched
from gpusched import cli
from gpusched.devices import helper
from gpusched.processes.identity import start_time
from tests.rig import PATIENCE_S, Search, end_all, wait_until

PACKAGE = Path(gpusched.__file__).parent
SCRIPTS = Path(__file__).parent / "scripts"
PLENTY_S = 1000
PLENTY = f"{PLENTY_S}s"
"""A deadline that no search of these tests meets, however busy the machine is."""


def hear_ctrl_c() -> None:
    """As in a terminal, also where the tests run in the background and it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Result:
    """Outcome of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


@dataclass
class Sandbox(Search):
    """A folder with recipes and runs, and the command line in it."""

    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def recipe(self, script: str, **keys: Any) -> Path:
        """A recipe for a script of ``tests/e2e/scripts``; ``keys`` replace the defaults.

        ``preload=None``: what DDP and optimizers need is imported once, which a rank takes 1.7 s for.
        """
        defaults = {
            "deadline": PLENTY,
            "policy": {"name": "fifo", "R": 3},
            "devices": "cpu:2",
            "max_trials": 2,
            "preload": [],
        }
        given = {**defaults, **keys}
        if given["preload"] is None:
            del given["preload"]
        return self.write_recipe(SCRIPTS / script, given)

    def start(self, *args: str | Path, **env: str) -> subprocess.Popen[str]:
        """Start a command and go on."""
        process = subprocess.Popen(
            [sys.executable, "-m", "gpusched", *map(str, args)],
            cwd=self.root,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_ctrl_c,
        )
        self.started.append(process)
        return process

    def gpusched(self, *args: str | Path, timeout_s: float = PATIENCE_S, **env: str) -> Result:
        """Run a command to its end."""
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=timeout_s)
        # The user's own traceback may be shown; one through our code may not.
        assert f'File "{PACKAGE}' not in out + err, out + err
        assert "internal error" not in err, err
        return Result(process.returncode, out, err)

    def call(self, *args: str | Path) -> Result:
        """Run a command in this process, half a second quicker: for one that starts no daemon."""
        out, err, handler = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGINT)
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        try:
            with contextlib.chdir(self.root), streams[0], streams[1]:
                code = cli.main([*map(str, args)])
        except SystemExit as end:  # what --help ends with
            code = int(end.code or 0)
        finally:
            signal.signal(signal.SIGINT, handler)
        for process in helper.KILLED:  # of a look at the GPUs; nobody else waits for it here
            process.wait()
        assert "internal error" not in err.getvalue(), err.getvalue()
        return Result(code, out.getvalue(), err.getvalue())

    def kill_daemon(self) -> None:
        """As the machine's out-of-memory killer would; returns when it is gone."""
        daemon = self.daemon()
        os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: start_time(daemon) is None, "the daemon's end")

    def kill_everything(self) -> None:
        """Daemon, servers, shims and ranks; returns when all are gone. The end of one may be the end of another."""
        end_all(self.processes)

    def files(self) -> Iterator[Path]:
        """Every file and folder of the experiment; they may come and go meanwhile."""
        yield self.experiment
        for folder, folders, files in os.walk(self.experiment):
            yield from (Path(folder, name) for name in (*folders, *files))

    def daemon(self) -> int:
        return int(json.loads((self.experiment / "lock").read_text())["pid"])

    def processes(self) -> list[int]:
        """Every process of gpusched that works in this folder: daemon, warm server, shims, ranks."""
        found, mine = [], str(self.root)
        own = {os.getpid(), *(process.pid for process in self.started)}
        for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
            words = " ".join(process.info["cmdline"] or [])
            if mine in words or (process.info["cwd"] or "").startswith(mine):
                found.append(process.pid)
        return [pid for pid in found if pid not in own]


def told(process: subprocess.Popen[str], word: str) -> str:
    """Return what a process has written to standard error, once this word is there."""
    assert process.stderr is not None
    said = b""
    while word.encode() not in said:
        piece = os.read(process.stderr.fileno(), 4096)
        assert piece, f"it never said {word!r}, but {said!r}"
        said += piece
    return said.decode()

"""Surroundings of the worker's tests: an experiment's folder, a daemon that answers as told, and real ranks.

``run_ranks`` forks processes that join a real gloo group, so a test of four ranks costs a fraction of a second. The
daemon is a thread with a real unix socket; only its mind is fake.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched.folder.paths import ExperimentPaths, TrialPaths
from gpusched.protocol import Answer, Remark, Report, Saved, encode, from_rank, from_stranger
from gpusched.worker import endings, start
from tests.rig import PATIENCE_S, wait_until

Reply = Callable[[Report], "str | bytes | None"]
_FORK = multiprocessing.get_context("fork")


def of_torchrun(rank: int, world_size: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}


@dataclass
class Bench:
    """An experiment's folder with one trial, and the environment of its ranks."""

    root: Path
    trial: int = 7
    seed: int = 123

    @property
    def experiment(self) -> ExperimentPaths:
        return ExperimentPaths(self.root)

    @property
    def paths(self) -> TrialPaths:
        return self.experiment.trial(self.trial)

    def prepare(self, hparams: Mapping[str, Any] | None = None, **worker: Any) -> None:
        settings = {"metric": "accuracy", "seed": 0, "batch": "per_atom"}
        self.paths.root.mkdir(parents=True, exist_ok=True)
        self.experiment.worker.write_text(json.dumps({**settings, **worker}))
        drawn = {"trial": self.trial, "seed": self.seed, "hparams": dict(hparams or {})}
        self.paths.hparams.write_text(json.dumps(drawn))

    def beside(self, name: str, **worker: Any) -> Bench:
        """Return another experiment's folder, prepared."""
        made = Bench(self.root / name)
        made.prepare(**worker)
        return made

    def environment(
        self, incarnation: int = 1, rank: int = 0, world_size: int = 1
    ) -> dict[str, str]:
        return {
            "GPUSCHED_DIR": str(self.root),
            "GPUSCHED_TRIAL": str(self.trial),
            "GPUSCHED_TRIAL_DIR": str(self.paths.own),
            "GPUSCHED_INCARNATION": str(incarnation),
            "GPUSCHED_DEVICE": "cpu",
            **of_torchrun(rank, world_size),
        }

    def reports(self) -> list[dict[str, Any]]:
        if not self.paths.reports.exists():
            return []
        return [json.loads(line) for line in self.paths.reports.read_text().splitlines()]

    def last_word(self, incarnation: int = 1) -> dict[str, Any] | None:
        path = self.paths.last_word(incarnation)
        return json.loads(path.read_text()) if path.exists() else None

    def checkpoints(self) -> list[str]:
        folder = self.paths.checkpoints
        return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


@dataclass
class FakeDaemon:
    """Answers every report with what ``answer`` returns: a verb, raw bytes, or None to hang up."""

    root: Path
    answer: Reply = lambda report: "continue"
    frames: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        here = os.open(self.root, os.O_RDONLY)
        self._server.bind(f"/proc/self/fd/{here}/daemon.sock")
        os.close(here)
        self._server.listen()
        self._lines: list[socket.socket] = []
        self._talks: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._server.accept()
                self._lines.append(line)
                talk = threading.Thread(target=self._talk, args=(line,), daemon=True)
                self._talks.append(talk)
                talk.start()

    def _talk(self, line: socket.socket) -> None:
        with suppress(OSError), line, line.makefile("rb") as stream:
            self.frames.append(from_stranger(next(stream)))
            for text in stream:
                frame = from_rank(text)
                self.frames.append(frame)
                if not isinstance(frame, Report):
                    continue
                answer = self.answer(frame)
                if answer is None:
                    line.shutdown(socket.SHUT_RDWR)
                    return
                if isinstance(answer, str):
                    answer = encode(Answer(frame.seq, answer))
                line.sendall(answer)

    def of_kind(self, kind: type[Any]) -> list[Any]:
        """Heard so far: a frame that waits for no answer may still be on its way."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def wait_for_silence(self) -> None:
        """Until all who spoke have hung up."""
        wait_until(
            lambda: not any(talk.is_alive() for talk in self._talks), "the line to be closed"
        )

    def saved(self) -> list[int]:
        """The steps that are said to be saved, once all who spoke have hung up."""
        self.wait_for_silence()
        return [frame.step for frame in self.of_kind(Saved)]

    def close(self) -> None:
        """As if the daemon had been killed: every socket is gone, the name stays."""
        for line in [self._server, *self._lines]:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._thread.join(5)


@contextmanager
def daemon(bench: Bench, answer: Reply = lambda report: "continue") -> Iterator[FakeDaemon]:
    fake = FakeDaemon(bench.root, answer)
    try:
        yield fake
    finally:
        fake.close()
        (bench.root / "daemon.sock").unlink(missing_ok=True)


def at_step(**answers: int) -> Reply:
    """``at_step(save=2, **{"yield": 5})``: that verb at that step, ``continue`` at all others."""
    by_step = {step: verb for verb, step in answers.items()}
    return lambda report: by_step.get(report.step, "continue")


@dataclass
class Ended:
    """How one rank ended: what its body returned, or the exit code, or the error's text."""

    value: Any = None
    code: int | None = None
    error: str = ""
    stderr: str = ""


def run_ranks(
    body: Callable[..., Any],
    world_size: int,
    bench: Bench | None = None,
    incarnation: int = 1,
    arguments: tuple[Any, ...] = (),
) -> list[Ended]:
    """Run ``body(*arguments)`` in real processes, as torchrun would; return how each ended, by rank.

    Called in the main thread: it forks.
    """
    _import_what_ranks_need()
    running = []
    # A port that nobody else is given: it stays bound and not listening, so that the ranks' store may have it.
    with socket.socket() as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        for rank in range(world_size):
            environment = of_torchrun(rank, world_size)
            if bench is not None:
                environment = bench.environment(incarnation, rank, world_size)
            environment |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port.getsockname()[1]),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            running.append(_begin(body, arguments, environment))
        return [_wait(*rank) for rank in running]


_at_leaving: Callable[[], Any] = type(None)


def if_it_leaves(value: Callable[[], Any]) -> None:
    """Have a rank that leaves inside its loop end with this value, as one that comes to its end returns it."""
    global _at_leaving
    _at_leaving = value


def values(ended: list[Ended]) -> list[Any]:
    """Return what each rank has returned; none may have failed."""
    for rank in ended:
        assert not rank.error, rank.error
    return [rank.value for rank in ended]


def remarks(
    bench: Bench,
    body: Callable[..., Any],
    *arguments: Any,
    ranks: int = 1,
    answer: Reply = lambda report: "continue",
) -> list[str]:
    """Return what the search is told of the script by a first launch in which no rank fails."""
    with daemon(bench, answer) as fake:
        values(run_ranks(body, ranks, bench, arguments=arguments))
        fake.wait_for_silence()
    return [frame.text for frame in fake.of_kind(Remark)]


END = 10**6
"""A step that no trial comes to: a launch that is to leave there runs to its end."""


def through(
    bench: Bench, body: Callable[..., Any], plan: list[tuple[int, int]], *arguments: Any
) -> list[list[Any]]:
    """Return what each launch's ranks return, where a launch is (ranks, step at which it leaves)."""
    found = []
    for incarnation, (ranks, until) in enumerate(plan, 1):
        with daemon(bench, at_step(**{"yield": until})):
            found.append(values(run_ranks(body, ranks, bench, incarnation, arguments)))
    return found


def _begin(
    body: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str]
) -> tuple[Any, Any, int]:
    """A rank's process, the pipe its end comes through, and the descriptor of its errors."""
    ours, theirs = _FORK.Pipe(duplex=False)
    stderr = os.memfd_create("stderr")
    process = _FORK.Process(target=_rank, args=(body, arguments, environment, theirs, stderr))
    process.start()
    theirs.close()
    return process, ours, stderr


def _wait(process: Any, pipe: Any, stderr: int) -> Ended:
    try:
        if pipe.poll(PATIENCE_S):
            ended = pipe.recv()
        else:
            ended = Ended(error="it hangs")
            os.kill(process.pid, signal.SIGUSR1)  # it writes where
            with suppress(AssertionError):
                wait_until(lambda: b"most recent call first" in os.pread(stderr, 1 << 20, 0))
            process.kill()
    except EOFError:
        ended = Ended(error="it died without a word")
    process.join(PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()
    ended.stderr = os.pread(stderr, 1 << 20, 0).decode()
    os.close(stderr)
    if ended.error:
        ended.error += f"\n{ended.stderr}"
    return ended


@functools.cache
def _import_what_ranks_need() -> None:
    """As the warm server does: once here instead of once in every fork (seconds)."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401


def run_rank(
    body: Callable[..., Any], bench: Bench, incarnation: int = 1, *arguments: Any
) -> Ended:
    """One rank; raises what it raised as an AssertionError."""
    (ended,) = run_ranks(body, 1, bench, incarnation, arguments)
    assert not ended.error, ended.error
    return ended


def _rank(
    body: Callable[..., Any], arguments: Any, environment: Any, pipe: Any, stderr: int
) -> None:
    ended = Ended()
    gc.freeze()  # as in a warm server: what other tests have made is not this script's
    atexit._clear()
    for name in [name for name in os.environ if name.startswith("GPUSCHED_")]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = ["script.py"]
    start._trial = None
    endings.mark(good=False)
    os.dup2(stderr, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=2)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    try:
        ended.value = body(*arguments)
    except SystemExit as leaving:
        ended.code = leaving.code if isinstance(leaving.code, int) else 0
        ended.value = _at_leaving()
    except BaseException:
        ended.error = traceback.format_exc()
    endings.mark(good=not ended.error)
    atexit._run_exitfuncs()
    sys.stderr.flush()
    pipe.send(ended)
    os._exit(0)

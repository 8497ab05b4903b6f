"""A child process that answers questions, one at a time, in newline-delimited JSON over pipes.

For slow or heavy work beside the daemon's loop: the daemon never waits, never imports NumPy, and keeps no threads for
it. The process is started on first use, runs at low priority, and ends with the daemon, however that ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from gpusched.errors import InputError
from gpusched.processes.identity import end_with_parent

#: A process that dies this often without an answer in between is not started again.
MAX_DEATHS = 3
_CHUNK_BYTES = 1 << 16
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Job = TypeVar("Job")
Answer = dict[str, Any]


class Child(Generic[Job]):
    """The daemon's end of ``python -m MODULE ARGUMENTS``. ``work``: what it is for, in messages."""

    def __init__(self, work: str, module: str, *arguments: str) -> None:
        self._work = work
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = b""
        self._read = b""
        self._deaths = 0
        self._lost: list[Job] = []
        #: Questions so far: each has a number, which its answer repeats.
        self._asked = 0
        #: The question without an answer yet.
        self.job: Job | None = None
        #: Problems, for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)

    @property
    def is_usable(self) -> bool:
        return self._deaths < MAX_DEATHS

    @property
    def is_fresh(self) -> bool:
        """Whether the next question is the first of its process."""
        return self._process is None

    def ask(self, job: Job, question: Mapping[str, object]) -> None:
        """Send a question, unless this one waits for its answer already. Call only without another ``job``."""
        if job == self.job:
            return
        assert self.job is None, f"{job} asked while {self.job} waits for its answer"
        self.job = job
        self._asked += 1
        self._unsent = json.dumps([self._asked, question]).encode() + b"\n"
        if self._process is None and not self._start():
            self._died("could not be started")
        else:
            self._send()

    def answers(self) -> list[tuple[Job, Answer | None]]:
        """Return the jobs that are done, with their answers: None where the process died or failed."""
        self._send()
        answer = self._receive()
        found: list[tuple[Job, Answer | None]] = [(job, None) for job in self._lost]
        self._lost.clear()
        if answer is not None and self.job is not None:
            job, self.job = self.job, None
            if "failed" in answer:
                self.complaints.append(f"{self._work}: {answer['failed']}")
                found.append((job, None))
            else:
                self._deaths = 0
                found.append((job, answer))
        return found

    def give_up(self, why: str) -> None:
        """End a process that takes too long; its job is lost."""
        self._died(why)

    def close(self) -> None:
        """End the process."""
        self._end()

    def _end(self) -> int | None:
        """End the process; return its status."""
        process, self._process = self._process, None
        self._unsent = self._read = b""
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()

    def _start(self) -> bool:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,
            )
        except OSError as error:
            self.complaints.append(f"{self._work}: no process: {error}")
            return False
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._process = process
        return True

    def _send(self) -> None:
        process = self._process
        if not self._unsent or process is None or process.stdin is None:
            return
        try:
            self._unsent = self._unsent[os.write(process.stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            pass  # the rest when the process has read
        except BrokenPipeError:
            self._died("did not take a question")

    def _receive(self) -> Answer | None:
        process = self._process
        if process is None or process.stdout is None:
            return None
        try:
            chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return None
        if not chunk:
            self._died("ended")
            return None
        self._read += chunk
        if not self._read.endswith(b"\n"):
            return None
        lines, self._read = self._read.splitlines(), b""
        found: Mapping[int, Answer] = dict(map(json.loads, lines))
        return found.get(self._asked)

    def _died(self, how: str) -> None:
        self._deaths += 1
        if self.job is not None:
            self._lost.append(self.job)
        self.job = None
        status = self._end()
        self.complaints.append(f"the process for {self._work} {how} (status {status})")


def serve(make: Callable[[], Callable[[Answer], Mapping[str, object]]]) -> None:
    """Be the child: answer one line for each line of the standard input, until it ends.

    ``make`` returns the function that answers. What either raises is the answer; without a function, the last one.
    """
    end_with_parent(True)  # the end of the pipe is noticed only between two answers
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of a library must not get between the answers
    os.nice(10)
    function: Callable[[Answer], Mapping[str, object]] | None = None
    for line in sys.stdin.buffer:
        try:
            number, question = json.loads(line)
            function = function or make()
            found = function(question)
        except InputError as error:  # a user's class, and the line
            found = {"failed": str(error).partition("\n")[0]}
        except Exception as error:
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps([number, found]).encode() + b"\n")
        if function is None:
            return

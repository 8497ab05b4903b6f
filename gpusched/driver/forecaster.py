"""Learning-curve forecasts away from the daemon's loop: ``Forecast`` commands in, ``Forecasted`` events out.

* ``PooledForecaster``, for live runs: processes of our own (``python -m gpusched.driver.forecaster NAME SEED``) that
  speak
  newline-delimited JSON over pipes. The daemon never waits, never imports NumPy, and keeps no threads for it. The
  processes are started on first use, run at low priority, and end with the daemon, however it ends.
* ``InlineForecaster``, for simulations: the same numbers, at once, optionally late by a simulated delay.

What a fit says depends on the curve, the seed, the trial and the step alone. It is journaled and never made again. Of a
trial only the newest request waits: an older one is out of date. Every request is answered; the answer is empty if it
was overtaken, could not be fitted, or if its process died.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpusched.core.decisions import Forecast
from gpusched.core.events import Event, Forecasted

if TYPE_CHECKING:
    from gpusched.policies.curves.predictor import CurvePredictor

#: A process that dies this often without an answer in between is not started again.
MAX_DEATHS = 3
_CHUNK_BYTES = 1 << 16


class Recipe(Protocol):
    """What is needed of a recipe (``gpusched.recipe.recipe.Recipe``)."""

    @property
    def policy_options(self) -> Mapping[str, Any]: ...

    @property
    def seed(self) -> int: ...


def make_forecaster(recipe: Recipe) -> PooledForecaster | None:
    """The forecaster that the recipe's policy asks for by its option ``predictor``; None if it forecasts nothing."""
    predictor = recipe.policy_options.get("predictor")
    if not isinstance(predictor, str):
        return None
    workers = max(1, min(4, len(os.sched_getaffinity(0)) // 4))
    return PooledForecaster(predictor, recipe.seed, workers)


# ---------------------------------------------------------------- live


class PooledForecaster:
    """Implements ``driver.Forecaster`` with up to ``workers`` processes."""

    def __init__(self, predictor: str, seed: int, workers: int = 1) -> None:
        self._workers = [_Worker(predictor, seed) for _ in range(max(1, workers))]
        self._waiting: dict[int, Forecast] = {}
        self._given_up: list[Forecast] = []
        #: What happened that a person should know; for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)

    @property
    def pending(self) -> int:
        """Requests that have no answer yet."""
        busy = sum(worker.job is not None for worker in self._workers)
        return len(self._waiting) + len(self._given_up) + busy

    def submit(self, command: Forecast) -> None:
        """Have it fitted; never waits."""
        overtaken = self._waiting.pop(command.trial, None)
        if overtaken is not None:
            self._given_up.append(overtaken)
        self._waiting[command.trial] = command
        self._feed()

    def poll(self, now: float) -> Sequence[Event]:
        """The forecasts that are done."""
        done: list[Event] = []
        for worker in self._workers:
            for command, forecast in worker.answers():
                done.append(_event(command, forecast, now))
            self.complaints.extend(worker.complaints)
            worker.complaints.clear()
        if self._waiting:
            self._feed()
        done += [_event(command, {}, now) for command in self._given_up]
        self._given_up.clear()
        return done

    def _feed(self) -> None:
        for worker in self._workers:
            if not self._waiting:
                return
            if worker.job is None and worker.usable:
                trial = next(iter(self._waiting))
                worker.give(self._waiting.pop(trial))
        if self._waiting and not any(worker.usable for worker in self._workers):
            self._given_up += self._waiting.values()
            self._waiting.clear()

    def close(self) -> None:
        """End the processes; forecasts that are not done are lost."""
        for worker in self._workers:
            worker.close()


class _Worker:
    """One process that fits one curve at a time."""

    def __init__(self, predictor: str, seed: int) -> None:
        self._arguments = [sys.executable, "-m", "gpusched.driver.forecaster", predictor, str(seed)]
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._deaths = 0
        self.job: Forecast | None = None
        self._lost: list[Forecast] = []
        self.complaints: list[str] = []

    @property
    def usable(self) -> bool:
        return self._deaths < MAX_DEATHS

    def give(self, job: Forecast) -> None:
        self.job = job
        process = self._process or self._start()
        if process is None or process.stdin is None:
            self._died("could not be started")
            return
        try:
            # One job at a time and curves are thinned: a line always fits into the empty pipe.
            process.stdin.write(_line(job))
        except (BrokenPipeError, BlockingIOError):
            self._died("did not take a curve")

    def answers(self) -> list[tuple[Forecast, Mapping[str, float]]]:
        """What is done since the last call; empty forecasts for what a dead process took along."""
        answer = self._receive()
        found: list[tuple[Forecast, Mapping[str, float]]] = [(job, {}) for job in self._lost]
        self._lost.clear()
        if answer is not None and self.job is not None:
            job, self.job, self._deaths = self.job, None, 0
            if "failed" in answer:
                self.complaints.append(f"forecast of trial {job.trial}: {answer['failed']}")
                answer = {}
            found.append((job, answer))
        return found

    def _receive(self) -> dict[str, Any] | None:
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
        line, self._read = self._read, b""
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes] | None:
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **threads},
                start_new_session=True,
            )
        except OSError as error:
            self.complaints.append(f"no process for forecasts: {error}")
            return None
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._process = process
        return process

    def _died(self, how: str) -> None:
        self._deaths += 1
        if self.job is not None:
            self._lost.append(self.job)
        self.job, self._read = None, b""
        status = self.close()
        self.complaints.append(f"the process for forecasts {how} (status {status})")

    def close(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()


def _line(command: Forecast) -> bytes:
    fields = {
        "trial": command.trial,
        "step": command.step,
        "curve": command.curve,
        "horizon": command.horizon,
        "target": command.target,
    }
    return json.dumps(fields).encode() + b"\n"


def _event(command: Forecast, forecast: Mapping[str, float], now: float) -> Forecasted:
    return Forecasted(at=now, trial=command.trial, step=command.step, forecast=dict(forecast))


# ---------------------------------------------------------------- simulated


class InlineForecaster:
    """Implements ``driver.Forecaster`` in this process. ``delay_s``: simulated seconds until the answer."""

    def __init__(
        self, predictor: str | CurvePredictor, seed: int = 0, *, delay_s: float = 0.0
    ) -> None:
        from gpusched.policies.curves.predictor import make_predictor

        self._predictor = make_predictor(predictor) if isinstance(predictor, str) else predictor
        self._seed, self._delay_s = seed, delay_s
        self._now = 0.0
        self._done: deque[tuple[float, Forecasted]] = deque()

    def submit(self, command: Forecast) -> None:
        from gpusched.policies.curves.forecast import forecast

        found = forecast(command, self._predictor, self._seed)
        self._done.append((self._now + self._delay_s, _event(command, found, self._now)))

    def poll(self, now: float) -> Sequence[Event]:
        self._now = now
        due: list[Event] = []
        while self._done and self._done[0][0] <= now:
            _, event = self._done.popleft()
            event.at = now
            due.append(event)
        return due


# ---------------------------------------------------------------- the process


def serve(predictor_name: str, seed: int) -> None:
    """Answer one line for each line of the standard input, until it ends."""
    _die_with_the_parent()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    os.nice(10)
    from gpusched.policies.curves.forecast import forecast
    from gpusched.policies.curves.predictor import make_predictor

    predictor = make_predictor(predictor_name)
    for line in sys.stdin.buffer:
        fields = json.loads(line)
        fields["curve"] = tuple(fields["curve"])
        try:
            answer: Mapping[str, object] = forecast(Forecast(**fields), predictor, seed)
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer).encode() + b"\n")


def _die_with_the_parent() -> None:
    """The end of the pipe is noticed only between two fits, and a fit may take long; the kernel does not wait."""
    import ctypes

    pr_set_pdeathsig = 1
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

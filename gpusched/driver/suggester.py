"""Suggestions of a sampler with a memory: ``Suggest`` commands in, ``Suggested`` events out; the daemon never waits.

A child process is told of all trials with every question (``samplers``). Nothing waits for it: each
configuration is asked for one trial ahead; the first ``startup`` ones are drawn at random, and so is one that is not
suggested in time, cannot be made, or has been tried before. What was suggested is journaled, so that replay is exact.
The process is started on first use, runs at low priority, and ends with the daemon, however that ends.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpusched.core.commands import Suggest
from gpusched.core.events import Event, Suggested
from gpusched.core.trial import TrialRecord
from gpusched.errors import InputError
from gpusched.policies import label
from gpusched.processes.identity import end_with_parent
from gpusched.recipe.recipe import Recipe
from gpusched.space.forms import identity

#: A suggestion that takes longer is not waited for; imports of a process's first one may take long on a busy machine.
LIMIT_S = 60.0
#: A process that dies this often without an answer in between is not started again.
MAX_DEATHS = 3
#: Points of a curve that the sampler gets to see.
_POINTS = 64
_CHUNK_BYTES = 1 << 16
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Answer = dict[str, Any]


class ChildSuggester:
    """A ``Helper``. ``trials``: those of the search, as it goes.

    ``is_patient``: wait for answers, as virtual time stands still meanwhile, and raise InputError for one that fails.
    """

    def __init__(
        self, recipe: Recipe, trials: Mapping[int, TrialRecord], *, is_patient: bool = False
    ) -> None:
        self._trials = trials
        options = dict(recipe.sampler_options)
        startup = int(options.pop("startup", 0)) - len(recipe.after)
        self._startup = max(startup, len(recipe.try_first))
        self._name = label(recipe.sampler_name)
        about = {"name": recipe.sampler_name, "options": options, "space": recipe.space}
        self._process = Process(json.dumps(about))
        #: The number of the configuration that the process was asked for and has not answered.
        self.asked_for: int | None = None
        #: Problems, for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)
        self._drawn = recipe.configurations()
        self._seed = recipe.seed
        self._sign = 1.0 if recipe.mode == "max" else -1.0
        #: Trials of an earlier search, numbered from -1 down.
        self._earlier = [
            {**one, "trial": ~n, "curve": [(step, y * self._sign) for step, y in one["curve"]]}
            for n, one in enumerate(recipe.after)
        ]
        self._is_patient = is_patient
        self._asked_at_s = 0.0
        #: Configurations that an earlier search tried, and those of this one's first so many trials. What a recipe
        #: names is tried all the same.
        self._tried = {identity(one["hparams"]) for one in recipe.after}
        self._tried -= {identity(self._drawn.sample(n)) for n in range(len(recipe.try_first))}
        self._counted = 0
        self._done: list[Suggested] = []

    def execute(self, command: Suggest) -> None:
        """Have configuration ``command.n`` suggested."""
        if self.asked_for == command.n:
            return  # asked again by a resume
        assert self.asked_for is None, f"{command.n} asked while {self.asked_for} is awaited"
        new = range(self._counted, len(self._trials))
        self._tried.update(identity(self._trials[number].hparams) for number in new)
        self._counted = len(self._trials)
        if command.n < self._startup:
            self._draw(command.n)
        elif self._process.deaths >= MAX_DEATHS:
            self._draw(command.n, f"the process of {self._name} died too often")
        else:
            self.asked_for, self._asked_at_s = command.n, time.monotonic()
            seen = [*self._earlier, *(_seen(one, self._sign) for one in self._trials.values())]
            self._process.ask({"n": command.n, "seed": self._seed, "seen": seen})

    def poll(self, until: float) -> Sequence[Event]:
        """Return the suggestions that are done."""
        self._look()
        while self._is_patient and self.asked_for is not None:
            time.sleep(0.001)
            self._look()
        done, self._done = self._done, []
        for event in done:
            event.at = until
        return done

    def close(self) -> None:
        """End the process."""
        self._process.end()

    def _look(self) -> None:
        n = self.asked_for
        if n is None:
            return
        answer, why = self._process.answer(), f"{self._name} failed"
        if answer is None and time.monotonic() > self._asked_at_s + LIMIT_S:
            why = f"{self._name} was too late"
            answer = self._process.died(f"did not answer in {LIMIT_S:g} s")
        if answer is None:
            return
        self.asked_for = None
        if "failed" in answer:
            self.complaints.append(f"sampler {self._name}: {answer['failed']}")
            if self._is_patient:  # what is compared would be random search
                raise InputError(self.complaints[-1])
            self._draw(n, why)
        elif answer["hparams"] is not None and identity(answer["hparams"]) in self._tried:
            self._draw(n, f"{self._name} suggested one that was tried before")
        else:
            self._done.append(Suggested(at=0.0, n=n, hparams=answer["hparams"], by=self._name))

    def _draw(self, n: int, why: str = "") -> None:
        """Take the random n-th, or the next that has not been tried."""
        later = itertools.takewhile(bool, map(self._drawn.sample, itertools.count(n)))
        earlier = map(self._drawn.sample, range(n))
        found = itertools.chain(later, earlier)
        fresh = (one for one in found if one is not None and identity(one) not in self._tried)
        self._done.append(Suggested(at=0.0, n=n, hparams=next(fresh, None), by="random", why=why))


def _seen(trial: TrialRecord, sign: float) -> dict[str, object]:
    curve = trial.curve
    best = [(trial.best_step, trial.best_score * sign)] if trial.best_step else []
    thinned = {*curve[:: len(curve) // _POINTS + 1], *curve[-1:], *best}
    points = sorted((step, metric * sign) for step, metric in thinned if metric == metric)
    return {
        "trial": trial.id,
        "hparams": dict(trial.hparams),
        "state": "failed" if trial.step and trial.metric is None else trial.state.value,
        "curve": points,
    }


# ---------------------------------------------------------------- the process, from the daemon's side


class Process:
    """``python -m gpusched.driver.suggester ABOUT``: one question at a time, in lines of JSON over pipes."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = self._read = b""
        #: Deaths since the last answer; a process whose answer is late is killed.
        self.deaths = 0

    def ask(self, question: Mapping[str, object]) -> None:
        """Send a question; never waits."""
        self._unsent = json.dumps(question).encode() + b"\n"

    def answer(self) -> Answer | None:
        """Return the answer to the last question, ``{"failed": why}`` without one; None: there is none yet."""
        try:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            if self._unsent:
                sent = os.write(process.stdin.fileno(), self._unsent)
                self._unsent = self._unsent[sent:]
            chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            return self.died(f"could not be asked ({error.strerror})")
        if not chunk:
            return self.died("ended")
        self._read += chunk
        if not self._read.endswith(b"\n"):
            return None
        line, self._read = self._read, b""
        answer: Answer = json.loads(line)
        if "failed" not in answer:
            self.deaths = 0
        return answer

    def died(self, how: str) -> Answer:
        """End the process, which is of no more use; return the answer that says so."""
        self.deaths += 1
        return {"failed": f"the process {how} (status {self.end()})"}

    def end(self) -> int | None:
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

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "gpusched.driver.suggester", self._about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,
        )
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        return process


# ---------------------------------------------------------------- the process, from inside


def _sampler(about: Mapping[str, Any]) -> Callable[[Answer], Mapping[str, object]]:
    from gpusched import samplers
    from gpusched.space.space import parse_space

    space = parse_space(about["space"])
    made = samplers.make(about["name"], space, about["options"])
    return functools.partial(samplers.answer, made)


def serve(about: Mapping[str, Any]) -> None:
    """Be the process: answer one line for each line of the standard input, until it ends.

    What the sampler raises is the answer; where it cannot be made, the last one.
    """
    end_with_parent()  # the end of the pipe is noticed only between two answers
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of a library must not get between the answers
    os.nice(10)
    sampler: Callable[[Answer], Mapping[str, object]] | None = None
    for line in sys.stdin.buffer:
        try:
            sampler = sampler or _sampler(about)
            found = sampler(json.loads(line))
        except InputError as error:  # a user's class, and the line
            found = {"failed": str(error).partition("\n")[0]}
        except Exception as error:
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found).encode() + b"\n")
        if sampler is None:
            return


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))

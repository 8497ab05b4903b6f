"""Suggestions of a sampler with a memory: ``Suggest`` commands in, ``Suggested`` events out; the daemon never waits.

A child process is told what is new of the trials with every question (``samplers.memory``). Nothing waits for it: each
configuration is asked for one trial ahead; the first ``startup`` ones are drawn at random, and so is one that is not
suggested in time, cannot be made, or has been tried before. What was suggested is journaled, so that replay is exact.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpusched.core.commands import Suggest
from gpusched.core.events import Event, Suggested
from gpusched.core.trial import TrialRecord
from gpusched.driver.child import Answer, Child, serve
from gpusched.policies import label
from gpusched.recipe.recipe import Recipe
from gpusched.space.forms import identity

#: A suggestion that takes longer is not waited for.
LIMIT_S = 20.0
#: Points of a curve that the sampler gets to see.
_POINTS = 64


class ChildSuggester(Child[int]):
    """A ``Helper``. ``trials``: those of the search, as it goes; ``is_patient``: wait for answers, as virtual time
    stands still meanwhile.
    """

    def __init__(
        self,
        recipe: Recipe,
        trials: Mapping[int, TrialRecord],
        *,
        is_patient: bool = False,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._trials = trials
        options = dict(recipe.sampler_options)
        startup = int(options.pop("startup", 0)) - len(recipe.after)
        self._startup = max(startup, len(recipe.try_first))
        self._name = label(recipe.sampler_name)
        about = {"name": recipe.sampler_name, "options": options, "space": recipe.space}
        super().__init__("suggestions", "gpusched.driver.suggester", json.dumps(about))
        self._drawn = recipe.configurations()
        self._seed = recipe.seed
        self._sign = 1.0 if recipe.mode == "max" else -1.0
        #: Trials of an earlier search, numbered from -1 down.
        self._earlier = [
            {**one, "trial": ~n, "curve": [(step, y * self._sign) for step, y in one["curve"]]}
            for n, one in enumerate(recipe.after)
        ]
        self._is_patient = is_patient
        self._limit_s = limit_s
        self._asked_at_s = 0.0
        #: Configurations that an earlier search tried, and those of this one's first so many trials.
        self._tried = {identity(one["hparams"]) for one in recipe.after}
        self._counted = 0
        #: State and number of reports of each trial, as the process was told last.
        self._told: dict[int, tuple[str, int]] = {}
        self._done: list[Suggested] = []

    def execute(self, command: Suggest) -> None:
        """Have configuration ``command.n`` suggested."""
        if self.job == command.n:
            return  # asked again by a resume
        new = range(self._counted, len(self._trials))
        self._tried.update(identity(self._trials[number].hparams) for number in new)
        self._counted = len(self._trials)
        if command.n < self._startup:
            self._draw(command.n)
        elif not self.is_usable:
            self._draw(command.n, f"the process of {self._name} died too often")
        else:
            self._asked_at_s = time.monotonic()
            earlier = self._earlier if self.is_fresh else []
            seen = [*earlier, *(_seen(trial, self._sign) for trial in self._news())]
            self.ask(command.n, {"n": command.n, "seed": self._seed, "new": seen})

    def _news(self) -> Iterator[TrialRecord]:
        """Yield the trials that the process does not know as they are now."""
        if self.is_fresh:
            self._told.clear()
        for trial in self._trials.values():
            known = (trial.state.value, len(trial.curve))
            if self._told.get(trial.id) != known:
                self._told[trial.id] = known
                yield trial

    def poll(self, until: float) -> Sequence[Event]:
        """Return the suggestions that are done."""
        self._look()
        while self._is_patient and self.job is not None:
            time.sleep(0.001)
            self._look()
        done, self._done = self._done, []
        for event in done:
            event.at = until
        return done

    def _look(self) -> None:
        late = self.job is not None and time.monotonic() > self._asked_at_s + self._limit_s
        if late:
            self.give_up(f"did not answer in {self._limit_s:g} s")
        for n, answer in self.answers():
            if answer is None:
                self._draw(n, f"{self._name} {'was too late' if late else 'failed'}")
            elif answer["hparams"] is not None and identity(answer["hparams"]) in self._tried:
                self._draw(n, f"{self._name} suggested one that was tried before")
            else:
                self._done.append(Suggested(at=0.0, n=n, hparams=answer["hparams"], by=self._name))

    def _draw(self, n: int, why: str = "") -> None:
        """Take the random n-th, or the next that has not been tried."""
        later = itertools.takewhile(bool, map(self._drawn.sample, itertools.count(n)))
        earlier = map(self._drawn.sample, range(n))
        fresh = (found for found in itertools.chain(later, earlier) if self._is_fresh(found))
        self._done.append(Suggested(at=0.0, n=n, hparams=next(fresh, None), by="random", why=why))

    def _is_fresh(self, hparams: Mapping[str, object] | None) -> bool:
        return hparams is not None and identity(hparams) not in self._tried


def _seen(trial: TrialRecord, sign: float) -> dict[str, object]:
    points = [(step, metric * sign) for step, metric in trial.curve if metric == metric]
    if len(points) > _POINTS:
        best = max(points, key=lambda point: point[1])
        thinned = {*points[:: len(points) // _POINTS + 1], best, points[-1]}
        points = sorted(thinned)
    return {
        "trial": trial.id,
        "hparams": dict(trial.hparams),
        "state": "failed" if trial.step and trial.metric is None else trial.state.value,
        "curve": points,
    }


# ---------------------------------------------------------------- the process


def _sampler(about: Mapping[str, Any]) -> Callable[[Answer], Mapping[str, object]]:
    from gpusched.samplers import memory
    from gpusched.space.space import parse_space

    space = parse_space(about["space"])
    made = memory.make(about["name"], space, about["options"])
    return functools.partial(memory.answer, made, {})


if __name__ == "__main__":
    serve(functools.partial(_sampler, json.loads(sys.argv[1])))

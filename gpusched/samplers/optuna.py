"""Samplers of Optuna's kind: ``tpe`` and ``gp`` are Optuna's own, ``cmaes`` is the optimizer that Optuna uses.

Imported in the child process alone. Optuna is given every numeric key as its quantile, a number from 0 to 1, so that
whole numbers, steps and logarithms are this package's own; and the history, as its samplers are asked without a memory
of theirs.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from gpusched.samplers.memory import Seen, Suggester
from gpusched.samplers.study import Param, params_of
from gpusched.space.forms import BITS, Choice, Const, Form, Range, Steps, same
from gpusched.space.space import flat

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
#: Trials that must have come to a step before ``gp`` goes by the scores there, or this part of them if that is more.
ENOUGH = 5
#: Most trials that ``gp`` is fitted to: one half the best so far, one half the newest.
MOST = 50
_QUANTILE = FloatDistribution(0.0, 1.0)


class _FromOptuna(Suggester):
    """A sampler that is asked through a study made anew from what was seen."""

    startup = 10

    @abstractmethod
    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Make Optuna's sampler."""

    @abstractmethod
    def known(self, seen: Seen) -> FrozenTrial | None:
        """Return what the study is to know of a trial; None: nothing."""

    def suggest(self, n: int, seen: Sequence[Seen], random: Random) -> Mapping[str, object]:
        study = optuna.create_study(
            sampler=self.sampler(random.getrandbits(32)), direction="maximize"
        )
        for trial in seen:
            known = self.known(trial)
            if known is not None:
                study.add_trial(known)
        asked = study.ask()

        def choose(path: tuple[str, ...], form: Form) -> object:
            name = ".".join(path)
            if isinstance(form, Const):
                return form.value
            if isinstance(form, Choice):
                place: int = asked.suggest_categorical(name, range(len(form.values)))
                return form.values[place]
            return _at(form, asked.suggest_float(name, 0.0, 1.0))

        return self.space.fill(choose)

    def frozen(self, seen: Seen, state: TrialState, **about: Any) -> FrozenTrial:
        return create_trial(state=state, **params_of(self.space, seen.hparams, _param), **about)


class Tpe(_FromOptuna):
    """Tree-structured Parzen estimators. A trial that was ended early counts as a pruned one, by how far it came."""

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=0, multivariate=True, group=True, constant_liar=True
        )

    def known(self, seen: Seen) -> FrozenTrial | None:
        if seen.state == "completed":
            return self.frozen(seen, TrialState.COMPLETE, value=seen.score)
        if seen.curve:
            return self.frozen(seen, TrialState.PRUNED, intermediate_values=dict(seen.curve))
        return self.frozen(seen, TrialState.RUNNING) if seen.state != "failed" else None


class Gp(_FromOptuna):
    """A Gaussian process over the scores at the highest step that enough trials have come to.

    Trained further, a trial would look better than others for that alone; one that did not come so far counts with its
    best score.
    """

    def suggest(self, n: int, seen: Sequence[Seen], random: Random) -> Mapping[str, object]:
        known = [trial for trial in seen if trial.score is not None]
        last = sorted((trial.curve[-1][0] for trial in known), reverse=True)
        if last:
            enough = max(ENOUGH, len(last) // ENOUGH)
            rung = last[min(enough, len(last)) - 1]
            known = _most_telling([_until(trial, rung) for trial in known])
        return super().suggest(n, known, random)

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        made = optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=1, deterministic_objective=False
        )
        # Ten by default; Optuna has no option for it. Half of the time of a suggestion, for the same suggestions.
        made._n_local_search = 3
        return made

    def known(self, seen: Seen) -> FrozenTrial | None:
        return self.frozen(seen, TrialState.COMPLETE, value=seen.score)


def _most_telling(seen: Sequence[Seen]) -> list[Seen]:
    """Return the best trials and the newest ones, ``MOST`` in all, in their order."""
    older, newest = seen[: -MOST // 2], seen[-MOST // 2 :]
    best = sorted(older, key=lambda trial: trial.score or 0.0, reverse=True)[: MOST // 2]
    return sorted([*best, *newest], key=lambda trial: trial.trial)


def _until(trial: Seen, step: int) -> Seen:
    """Return the trial as it was at a step; with its first report where all are later."""
    curve = [point for point in trial.curve if point[0] <= step] or list(trial.curve[:1])
    return replace(trial, curve=curve)


class CmaEs(Suggester):
    """CMA-ES over the numeric keys that every configuration has; the others are drawn."""

    def suggest(self, n: int, seen: Sequence[Seen], random: Random) -> Mapping[str, object]:
        import numpy
        from cmaes import CMA

        paths = [
            path
            for path, leaf in self.space.leaves.items()
            if isinstance(leaf.form, Range | Steps) and not leaf.conditions
        ]
        forms = {
            path: leaf.form for path, leaf in self.space.leaves.items() if leaf.form is not None
        }
        if len(paths) < 2:
            raise ValueError("cmaes needs at least two numeric keys without a condition; use tpe")
        optimizer = CMA(
            mean=numpy.full(len(paths), 0.5),
            sigma=1 / 6,
            bounds=numpy.array([[0.0, 1.0]] * len(paths)),
            seed=random.getrandbits(32),
        )
        told = []
        for trial in seen:
            if trial.score is not None:
                values = flat(trial.hparams, self.space.leaves)
                place = numpy.array([_quantile(forms[path], values[path]) for path in paths])
                told.append((place, -trial.score))
            if len(told) == optimizer.population_size:
                optimizer.tell(told)
                told = []
        asked = zip(paths, optimizer.ask(), strict=True)
        return self.space.nested({path: _at(forms[path], float(x)) for path, x in asked})


def _param(form: Form, value: Any) -> Param:
    """Return a value as the samplers have it: its place in a choice, or its quantile."""
    if isinstance(form, Choice):
        place = next(n for n, option in enumerate(form.values) if same(option, value))
        return place, CategoricalDistribution(range(len(form.values)))
    return _quantile(form, value), _QUANTILE


def _at(form: Form, quantile: float) -> object:
    return form.draw(min(int(quantile * (1 << BITS)), (1 << BITS) - 1))


def _quantile(form: Form, value: object) -> float:
    """Return the place of a value in its range, from 0 to 1, as ``draw`` spreads it."""
    assert isinstance(value, int | float)
    if isinstance(form, Steps):
        count = float(value) / float(form.step)
        low, high = form.first - 0.5, form.last + 0.5
    else:
        assert isinstance(form, Range)
        count, low, high = float(value), form.low, form.high
    if form.logarithmic:
        count, low, high = math.log(count), math.log(low), math.log(high)
    return min(max((count - low) / (high - low), 0.0), 1.0)

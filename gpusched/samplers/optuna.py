"""``tpe``: Optuna's TPESampler, asked through a study that is made anew from the history.

Imported in the child process, and where a recipe is checked. Optuna is given every numeric key as its quantile, a
number from 0 to 1, so that whole numbers, steps and logarithms are this package's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from gpusched.samplers import Sampler, Seen
from gpusched.space.forms import BITS, Choice, Form, Range, Steps, quantile_of, same
from gpusched.space.space import flat

optuna.logging.set_verbosity(optuna.logging.ERROR)
_QUANTILE = FloatDistribution(0.0, 1.0)


class Tpe(Sampler):
    """Asks Optuna's TPESampler, which is made anew for each question, as is its study."""

    startup = 10
    #: Arguments that the recipe may replace; ``startup`` alone says how many are random.
    usual: ClassVar[Mapping[str, Any]] = {
        "n_startup_trials": 1,
        "multivariate": True,
        "group": True,
        "constant_liar": True,
    }

    def __init__(self, space: Any, **options: Any) -> None:
        """``options``: of Optuna's sampler, which raises TypeError or ValueError for others."""
        super().__init__(space)
        self._options = {**self.usual, **options}
        self._made(0)

    def _made(self, seed: int) -> optuna.samplers.TPESampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(**self._options, seed=seed)

    def suggest(self, n: int, seen: Sequence[Seen], random: Random) -> Mapping[str, object]:
        sampler = self._made(random.getrandbits(32))
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.add_trials([self._known(trial) for trial in seen])
        asked = study.ask()

        def choose(path: tuple[str, ...], form: Form) -> object:
            name = ".".join(path)
            if isinstance(form, Choice):
                place: int = asked.suggest_categorical(name, range(len(form.values)))
                return form.values[place]
            quantile = asked.suggest_float(name, 0.0, 1.0)
            return form.draw(min(int(quantile * (1 << BITS)), (1 << BITS) - 1))

        return self.space.fill(choose)

    def _known(self, seen: Seen) -> FrozenTrial:
        """Return what the study is to know of a trial.

        Trials that were ended early, or train, are pruned: they rank behind complete ones, by how far they came, and a
        failed one, told without a score, behind all.
        """
        if seen.state == "failed":
            return self._frozen(seen, TrialState.PRUNED)
        if not seen.curve:
            return self._frozen(seen, TrialState.RUNNING)
        if seen.state != "completed":
            return self._frozen(seen, TrialState.PRUNED, intermediate_values=dict(seen.curve))
        return self._frozen(seen, TrialState.COMPLETE, value=seen.score)

    def _frozen(self, seen: Seen, state: TrialState, **about: Any) -> FrozenTrial:
        params, distributions = {}, {}
        for path, value in flat(seen.hparams, self.space.leaves).items():
            name = ".".join(path)
            # A person may have tried a value outside the space.
            with suppress(StopIteration, ArithmeticError):
                params[name], distributions[name] = _param(self.space.leaves[path].form, value)
        return create_trial(state=state, params=params, distributions=distributions, **about)


def _param(form: Form | None, value: Any) -> tuple[Any, BaseDistribution]:
    """Return a value as the samplers have it: its place in a choice, or its quantile."""
    if isinstance(form, Choice):
        place = next(n for n, option in enumerate(form.values) if same(option, value))
        return place, CategoricalDistribution(range(len(form.values)))
    assert isinstance(form, Range | Steps)
    return quantile_of(form, value), _QUANTILE

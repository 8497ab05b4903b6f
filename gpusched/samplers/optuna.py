"""Optuna's samplers, asked through a study that is made anew from the history.

Imported in the child process, and where a recipe is checked. Optuna is given every numeric key as its quantile, a
number from 0 to 1, so that whole numbers, steps and logarithms are this package's own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from gpusched.samplers import OPTUNA, Sampler, Seen
from gpusched.space.forms import BITS, Choice, Const, Form, Range, Steps, quantile_of, same
from gpusched.space.space import flat

optuna.logging.set_verbosity(optuna.logging.ERROR)
_QUANTILE = FloatDistribution(0.0, 1.0)


def sampler_type(name: str) -> type[Sampler]:
    """Return a sampler that asks Optuna's of this name in ``OPTUNA``."""
    class_name, usual = OPTUNA[name]
    kind = getattr(optuna.samplers, class_name)
    found = type(class_name, (FromOptuna,), {"kind": kind, "usual": usual})
    given = inspect.signature(kind).parameters.values()
    own = inspect.Parameter("space", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in given]
    found.__signature__ = inspect.Signature([own, *(a for a in arguments if a.name != "seed")])  # type: ignore[attr-defined]
    return found


class FromOptuna(Sampler):
    """Asks a sampler of Optuna's, which is made anew for each question, as is its study."""

    startup = 10
    kind: ClassVar[type[optuna.samplers.BaseSampler]]
    #: Arguments that the recipe may replace.
    usual: ClassVar[Mapping[str, Any]]

    def __init__(self, space: Any, **options: Any) -> None:
        super().__init__(space)
        self._options = {**self.usual, **options}

    def suggest(self, n: int, seen: Sequence[Seen], random: Random) -> Mapping[str, object]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = self.kind(**self._options, seed=random.getrandbits(32))
        study = optuna.create_study(sampler=sampler, direction="maximize")
        worst = min((score for trial in seen for _, score in trial.curve), default=None)
        study.add_trials([known for trial in seen if (known := self._known(trial, worst))])
        asked = study.ask()

        def choose(path: tuple[str, ...], form: Form) -> object:
            name = ".".join(path)
            if isinstance(form, Const):
                return form.value
            if isinstance(form, Choice):
                place: int = asked.suggest_categorical(name, range(len(form.values)))
                return form.values[place]
            quantile = asked.suggest_float(name, 0.0, 1.0)
            return form.draw(min(int(quantile * (1 << BITS)), (1 << BITS) - 1))

        return self.space.fill(choose)

    def _known(self, seen: Seen, worst: float | None) -> FrozenTrial | None:
        """Return what the study is to know of a trial; None: nothing.

        To TPE trials that were ended early, or train, are pruned: it ranks them behind complete ones, by how far they
        came, and a failed one, told without a score, behind all. ``gp`` looks at complete trials alone.
        """
        prunes = issubclass(self.kind, optuna.samplers.TPESampler)
        if seen.state == "failed":
            if prunes:
                return self._frozen(seen, TrialState.PRUNED)
            return None if worst is None else self._frozen(seen, TrialState.COMPLETE, value=worst)
        if not seen.curve:
            return self._frozen(seen, TrialState.RUNNING)
        if prunes and seen.state != "completed":
            return self._frozen(seen, TrialState.PRUNED, intermediate_values=dict(seen.curve))
        return self._frozen(seen, TrialState.COMPLETE, value=seen.score)

    def _frozen(self, seen: Seen, state: TrialState, **about: Any) -> FrozenTrial:
        params, distributions = {}, {}
        for path, value in flat(seen.hparams, self.space.leaves).items():
            leaf, name = self.space.leaves.get(path), ".".join(path)
            if leaf is not None and leaf.form is not None and not isinstance(leaf.form, Const):
                # A person may have tried a value outside the space.
                with suppress(StopIteration, ArithmeticError):
                    params[name], distributions[name] = _param(leaf.form, value)
        return create_trial(state=state, params=params, distributions=distributions, **about)


def _param(form: Form, value: Any) -> tuple[Any, BaseDistribution]:
    """Return a value as the samplers have it: its place in a choice, or its quantile."""
    if isinstance(form, Choice):
        place = next(n for n, option in enumerate(form.values) if same(option, value))
        return place, CategoricalDistribution(range(len(form.values)))
    assert isinstance(form, Range | Steps)
    return quantile_of(form, value), _QUANTILE

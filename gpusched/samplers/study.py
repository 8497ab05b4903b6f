"""A search as a study of Optuna, for ``optuna.load_study`` and optuna-dashboard: ``gpusched export --optuna FILE``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from gpusched.errors import InputError
from gpusched.space.forms import Choice, Const, Form, Range, Steps, same
from gpusched.space.space import Space, flat
from gpusched.text import show

Param = tuple[Any, BaseDistribution]
"""A value as Optuna has it, and what it was drawn from."""

#: A file with one of these names becomes an SQLite database, any other one a journal of Optuna.
SQLITE = (".db", ".sqlite", ".sqlite3")
_STATES = {
    "completed": TrialState.COMPLETE,
    "paused": TrialState.PRUNED,
    "stopped": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True, slots=True)
class Exported:
    """One trial. ``curve``: (step, metric) of the finite reports. Times in seconds since 1970."""

    trial: int
    hparams: Mapping[str, Any]
    #: As in ``memory.Seen``.
    state: str
    curve: Sequence[tuple[int, float]]
    began_s: float
    ended_s: float
    notes: Mapping[str, Any] = field(default_factory=dict)


def write(
    file: Path, name: str, mode: str, space: Space, trials: Iterable[Exported]
) -> optuna.Study:
    """Write a new study. Raises InputError where the file holds this study already, or cannot be written."""
    direction = "maximize" if mode == "max" else "minimize"
    try:
        study = optuna.create_study(storage=_storage(file), study_name=name, direction=direction)
        study.add_trials([_frozen(trial, mode, space) for trial in trials])
    except optuna.exceptions.DuplicatedStudyError:
        raise InputError(f"{file}: the study {name} is in it already; name another file") from None
    except (OSError, optuna.exceptions.StorageInternalError) as error:
        raise InputError(f"{file}: the study cannot be written there ({error})") from None
    return study


def _storage(file: Path) -> optuna.storages.BaseStorage | str:
    if file.suffix in SQLITE:
        return f"sqlite:///{file}"
    from optuna.storages.journal import JournalFileBackend

    return optuna.storages.JournalStorage(JournalFileBackend(str(file)))


def _frozen(trial: Exported, mode: str, space: Space) -> FrozenTrial:
    state = _STATES.get(trial.state, TrialState.RUNNING)
    metrics = [metric for _, metric in trial.curve]
    if state is TrialState.COMPLETE and not metrics:
        state = TrialState.FAIL
    best = (max(metrics) if mode == "max" else min(metrics)) if metrics else None
    frozen = create_trial(
        state=state,
        value=best if state is TrialState.COMPLETE else None,
        **params_of(space, trial.hparams, _param),
        user_attrs={"trial": trial.trial, "state": trial.state, "best": best, **trial.notes},
        intermediate_values=dict(trial.curve),
    )
    frozen.datetime_start = _local(trial.began_s)
    if state.is_finished():
        frozen.datetime_complete = _local(max(trial.began_s, trial.ended_s))
    return frozen


def _local(at_s: float) -> datetime:
    """Return the time as Optuna keeps it: local, without a zone."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().replace(tzinfo=None)


def params_of(
    space: Space, hparams: Mapping[str, Any], param: Callable[[Form, Any], Param]
) -> dict[str, dict[str, Any]]:
    """Return ``params`` and ``distributions`` of a configuration, as ``create_trial`` takes them."""
    found: dict[str, Param] = {}
    for path, value in flat(hparams, space.leaves).items():
        leaf = space.leaves.get(path)
        if leaf is not None and leaf.form is not None and not isinstance(leaf.form, Const):
            found[".".join(path)] = param(leaf.form, value)
    return {
        "params": {name: value for name, (value, _) in found.items()},
        "distributions": {name: distribution for name, (_, distribution) in found.items()},
    }


def _param(form: Form, value: Any) -> Param:
    if isinstance(form, Choice):
        place = next(n for n, option in enumerate(form.values) if same(option, value))
        options = _options(form.values)
        return options[place], CategoricalDistribution(options)
    if isinstance(form, Range):
        return float(value), FloatDistribution(form.low, form.high, log=form.logarithmic)
    assert isinstance(form, Steps)
    low, high = form.first * form.step, form.last * form.step
    if form.whole:
        step = 1 if form.logarithmic else int(form.step)
        return int(value), IntDistribution(int(low), int(high), log=form.logarithmic, step=step)
    # Optuna's steps are floats, in which 0.15 is not among 0.05, 0.1, ..: the range alone.
    return float(value), FloatDistribution(float(low), float(high), log=form.logarithmic)


def _options(values: Sequence[object]) -> list[Any]:
    """Return values of a kind that Optuna stores, all different."""
    plain = [v if v is None or isinstance(v, bool | int | float | str) else show(v) for v in values]
    texts = [show(v) for v in values]
    is_plain = len(set(map(repr, plain))) == len(plain) and all(_is_finite(v) for v in plain)
    return plain if is_plain else [f"{n}: {text}" for n, text in enumerate(texts)]


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)

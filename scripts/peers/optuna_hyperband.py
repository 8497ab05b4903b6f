"""Optuna with TPE and Hyperband, a process a slot, as its documentation advises: ``optuna_hyperband.py UNTIL SEED``."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

import optuna
import task
from optuna.storages.journal import JournalFileBackend, JournalStorage

UNTIL, SEED = float(sys.argv[1]), int(sys.argv[2])


def left_s() -> float:
    return UNTIL - time.clock_gettime(time.CLOCK_BOOTTIME)


def objective(trial: optuna.Trial) -> float:
    scores = [0.0]

    def report(k: int, value: float) -> None:
        scores.append(value)
        trial.report(value, k)
        if trial.should_prune() or left_s() <= 0:
            raise optuna.TrialPruned

    suggested = task.space(
        uniform=lambda *bounds: lambda name: trial.suggest_float(name, *bounds),
        loguniform=lambda *bounds: lambda name: trial.suggest_float(name, *bounds, log=True),
        int=lambda *bounds: lambda name: trial.suggest_int(name, *bounds),
        choice=lambda *values: lambda name: trial.suggest_categorical(name, values),
    )
    hparams = {name: suggest(name) for name, suggest in suggested.items()}
    task.train(hparams, report)
    return scores[-1]


def search(worker: int) -> None:
    file = JournalFileBackend(os.environ["PEERS_NOTES"] + "-optuna")
    study = optuna.create_study(
        study_name="peers",
        load_if_exists=True,
        storage=JournalStorage(file),
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=task.SLOTS * SEED + worker),
        pruner=optuna.pruners.HyperbandPruner(task.FIRST_RUNG, task.R_STEPS, task.ETA),
    )
    study.optimize(objective, timeout=max(0.0, left_s()))


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    import recipe  # noqa: F401  (torch too: once, before the fork)

    with multiprocessing.get_context("fork").Pool(task.SLOTS) as pool:
        pool.map(search, range(task.SLOTS))

"""Optuna with TPE and Hyperband, eight trials at a time in threads: ``python optuna_hyperband.py UNTIL SEED``."""

from __future__ import annotations

import sys
import time

import optuna
import score

UNTIL, SEED = float(sys.argv[1]), int(sys.argv[2])


def left_s() -> float:
    return UNTIL - time.clock_gettime(time.CLOCK_BOOTTIME)


def objective(trial: optuna.Trial) -> float:
    value = 0.0
    for k, value in score.steps({name: trial.suggest_float(name, 0, 1) for name in score.NAMES}):
        trial.report(value, k)
        if trial.should_prune() or left_s() <= 0:
            raise optuna.TrialPruned
    return value


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=SEED),
        pruner=optuna.pruners.HyperbandPruner(score.FIRST_RUNG, score.R_STEPS, score.ETA),
    )
    study.optimize(objective, n_jobs=8, timeout=max(0.0, left_s()))

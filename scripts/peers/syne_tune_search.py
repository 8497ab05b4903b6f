"""Syne Tune's ASHA on its local backend, a worker a slot: ``python syne_tune_search.py UNTIL SEED``."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import task
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend import LocalBackend
from syne_tune.config_space import choice, loguniform, randint, uniform
from syne_tune.optimizer.baselines import ASHA

UNTIL, SEED = float(sys.argv[1]), int(sys.argv[2])

if __name__ == "__main__":
    logging.getLogger().setLevel(logging.ERROR)
    os.environ["SYNETUNE_FOLDER"] = os.environ["PEERS_NOTES"] + "-syne"
    scheduler = ASHA(
        task.space(
            uniform=uniform,
            loguniform=loguniform,
            int=randint,
            choice=lambda *values: choice(list(values)),
        ),
        metric="score",
        time_attr="step",
        max_t=task.R_STEPS,
        grace_period=task.FIRST_RUNG,
        reduction_factor=task.ETA,
        do_minimize=False,
        random_seed=SEED,
    )
    Tuner(
        trial_backend=LocalBackend(
            entry_point=str(Path(__file__).with_name("syne_tune_trial.py")), rotate_gpus=False
        ),
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(
            max_wallclock_time=UNTIL - time.clock_gettime(time.CLOCK_BOOTTIME)
        ),
        n_workers=task.SLOTS,
        sleep_time=0.5,
        save_tuner=False,
    ).run()

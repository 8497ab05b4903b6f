"""Ray Tune with ASHA on the task's slots, as its documentation shows it: ``python ray_asha.py UNTIL SEED``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

UNTIL, SEED = float(sys.argv[1]), int(sys.argv[2])
HERE = str(Path(__file__).parent)


def train(config: dict[str, float]) -> None:
    sys.path.insert(0, HERE)
    import task

    task.train(config, lambda k, value: tune.report({"score": value, "step": k}))


sys.path.insert(0, HERE)
import task  # noqa: E402

if __name__ == "__main__":
    ray.init(
        num_cpus=task.SLOTS,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": dict(os.environ)},
    )
    tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=task.space(
            uniform=tune.uniform,
            loguniform=tune.loguniform,
            int=lambda low, high: tune.randint(low, high + 1),  # the upper end does not count
            choice=lambda *values: tune.choice(values),
        ),
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=-1,
            time_budget_s=UNTIL - time.clock_gettime(time.CLOCK_BOOTTIME),
            scheduler=ASHAScheduler(
                time_attr="step",
                max_t=task.R_STEPS,
                grace_period=task.FIRST_RUNG,
                reduction_factor=task.ETA,
            ),
            search_alg=tune.search.BasicVariantGenerator(
                random_state=SEED, max_concurrent=task.SLOTS
            ),
        ),
        run_config=tune.RunConfig(storage_path=os.environ["PEERS_NOTES"] + "-ray", verbose=0),
    ).fit()

"""Ray Tune with ASHA on eight slots, as its documentation shows it: ``python ray_asha.py UNTIL SEED``."""

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
    import score

    for k, value in score.steps(config):
        tune.report({"score": value, "step": k})


sys.path.insert(0, HERE)
import score  # noqa: E402

if __name__ == "__main__":
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": dict(os.environ)},
    )
    tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={name: tune.uniform(0, 1) for name in score.NAMES},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=-1,
            time_budget_s=UNTIL - time.clock_gettime(time.CLOCK_BOOTTIME),
            scheduler=ASHAScheduler(
                time_attr="step",
                max_t=score.R_STEPS,
                grace_period=score.FIRST_RUNG,
                reduction_factor=score.ETA,
            ),
            search_alg=tune.search.BasicVariantGenerator(random_state=SEED, max_concurrent=8),
        ),
        run_config=tune.RunConfig(storage_path=os.environ["PEERS_NOTES"] + "-ray", verbose=0),
    ).fit()

"""A trial of Syne Tune: hyperparameters come as options, scores go to its Reporter."""

from __future__ import annotations

import argparse

import task
from syne_tune import Reporter

parser = argparse.ArgumentParser()
for name, domain in task.SPACE.items():
    is_whole = all(isinstance(value, int) for values in domain.values() for value in values)
    parser.add_argument(f"--{name}", type=int if is_whole else float)
hparams = vars(parser.parse_known_args()[0])
report = Reporter()
task.train(hparams, lambda k, value: report(step=k, score=value))

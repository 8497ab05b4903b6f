"""A trial of Syne Tune: hyperparameters come as options, scores go to its Reporter."""

from __future__ import annotations

import argparse

import score
from syne_tune import Reporter

parser = argparse.ArgumentParser()
for name in score.NAMES:
    parser.add_argument(f"--{name}", type=float)
hparams = vars(parser.parse_known_args()[0])
report = Reporter()
for k, value in score.steps(hparams):
    report(step=k, score=value)

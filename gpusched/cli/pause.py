"""Pause a trial: it saves a checkpoint at its next step and gives its atoms back until it is unpaused."""

from __future__ import annotations

import argparse

from gpusched.cli import common

prepare_parser = common.prepare_trial_parser


def run(args: argparse.Namespace) -> int:
    return common.ask_of_trial(args, "pause")

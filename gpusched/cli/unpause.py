"""Let a trial go on that was paused: it gets the next free atom."""

from __future__ import annotations

import argparse

from gpusched.cli import common

prepare_parser = common.prepare_trial_parser


def run(args: argparse.Namespace) -> int:
    return common.ask_of_trial(args, "unpause")

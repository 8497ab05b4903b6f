"""Explain why a trial is where it is: its story, its ranks, and what would make it move."""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.daemon import session

prepare_parser = common.prepare_trial_parser


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    answer = session.explanation(paths, session.trial_number(args.trial))
    lines = (common.paragraph(line, rest=" " * 15) for line in answer["lines"])
    return common.tell(args, answer["data"], "\n".join(lines))

"""Plays a made-up search in the live dashboard: ``python -m tests.dashboard.play [--speed 8] [--view FILE] ..``.

Run in a terminal to look at it; the tests run it in tmux. It says on its last line how watching ended.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpusched.cli.attach import show, tabs, tell_the_end
from gpusched.dashboard.model import Standing, from_json
from gpusched.errors import DamagedState
from gpusched.folder.paths import ExperimentPaths
from tests.dashboard.scene import Scene


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed", type=float, default=4.0, help="virtual seconds a second")
    parser.add_argument("--view", type=Path, help="this recorded view, and then silence")
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument(
        "--own", action="store_true", help="Ctrl-C is for the experiment, as in run"
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pid-file", type=Path)
    parser.add_argument("--then-fail", action="store_true")
    args = parser.parse_args()
    scene = Scene(deadline_s=args.deadline, fails=(3,))
    if args.pid_file is not None:
        args.pid_file.write_text(str(os.getpid()))
    last: list[Standing] = []

    def frames() -> Iterator[Standing | None]:
        if args.view is not None:
            yield from_json(json.loads(args.view.read_text()))
            if args.then_fail:
                time.sleep(1.0)
                raise DamagedState("the journal is damaged")
            while True:
                time.sleep(0.5)
                yield None
        for view in scene.frames(0.5):
            last[:] = [view]
            yield view
            time.sleep(0.5 / args.speed)

    def explain(trial: int | None) -> list[str]:
        return [f"the story of trial {trial}", "starting -> running: up on 1 atoms"]

    sources = tabs(ExperimentPaths(args.folder)) if args.folder else {}
    why = show(
        frames,
        sources={**sources, "trial": explain},
        on_interrupt=(lambda: "stopping") if args.own else None,
    )
    if why == "over" and last:
        tell_the_end(last[0])
    print(f"ended: {why}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

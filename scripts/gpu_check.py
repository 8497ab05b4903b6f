"""What a real GPU does: how long processes and memory take to go, starts, resizes, turns. JSON lines; < 9 minutes.

    python scripts/gpu_check.py                # on one GPU; says so and ends with 0 where there is none
    python scripts/gpu_check.py --cpu          # a rehearsal on one CPU slot: the same code, other figures

Every launch, end and release goes through gpusched's own executor. What is measured and how to read it:
docs/gpu-release.md. A part that cannot be measured says why in a line of its own, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from gpu_parts import lives, searches  # noqa: E402

from gpusched.errors import GpuschedError  # noqa: E402
from gpusched.executors.devices import gpus_here  # noqa: E402

PARTS = ("starts", "resize", "turns", "cifar10", "endings")
VGG19_ROWS = 140_000  # x 1024 float32: 573 MB, as VGG19 has


def parts(
    args: argparse.Namespace, began_s: float
) -> dict[str, Callable[[], Iterator[dict[str, Any]]]]:
    """Endings come last: they take what time is left."""
    cpu, short = args.cpu, args.cpu
    device = "cpu:1" if cpu else "cuda:0"
    rows = 2000 if short else VGG19_ROWS
    return {
        "starts": lambda: lives.starts(cpu=cpu, rounds=2 if short else 5),
        "resize": lambda: lives.resizes(cpu=cpu, rounds=2 if short else 5, rows=rows),
        "turns": lambda: searches.turns(
            device=device,
            rows=rows,
            quantum_s=1.0 if short else 4.0,
            deadline_s=25.0 if short else 60.0,
        ),
        "cifar10": lambda: searches.cifar10(
            device=device,
            images_a_file=32 if short else 10_000,
            model="shufflenet_v2" if short else "resnet18",
            deadline_s=50.0 if short else 60.0,
        ),
        "endings": lambda: lives.endings(
            cpu=cpu, rounds=args.rounds, until_s=began_s + args.seconds
        ),
    }


def about(cpu: bool) -> dict[str, Any]:
    """The machine, for whoever reads the figures."""
    import torch

    found: dict[str, Any] = {
        "part": "machine",
        "rehearsal": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if not cpu:
        from gpusched.executors.gpus import gpu_states

        states, notes = gpu_states()
        found.update(gpus=[state.reading.label for state in states], notes=notes)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cpu", action="store_true", help="rehearse on one CPU slot")
    parser.add_argument("--rounds", type=int, default=50, help="endings of each kind (default 50)")
    parser.add_argument("--seconds", type=float, default=500.0, help="no more endings after this")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    args = parser.parse_args()
    if not args.cpu and not gpus_here():
        message = "the driver shows no GPU here: nothing was measured; --cpu rehearses without one"
        print(json.dumps({"part": "machine", "gpus": [], "message": message}))
        return 0
    began_s = time.monotonic()
    print(json.dumps(about(args.cpu)), flush=True)
    failed = False
    for name, measure in parts(args, began_s).items():
        if name not in args.only:
            continue
        try:
            for line in measure():
                print(json.dumps(line), flush=True)
        except (lives.Failed, GpuschedError, OSError) as error:
            failed = True
            print(json.dumps({"part": name, "error": str(error)}), flush=True)
    print(json.dumps({"part": "end", "seconds": round(time.monotonic() - began_s, 1)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measurements on a real GPU: its driver's answers, how long processes and memory take to go, starts, resizes, endings.

    python scripts/gpu_check.py                # on one free GPU; says so and ends with 0 where there is none
    python scripts/gpu_check.py --cpu          # a rehearsal on one CPU slot: the same code, other figures
    python scripts/gpu_check.py --only endings --rounds 200

JSON lines. First what decides most; run part by part where time is short (`--only nvml`, each under 9 minutes).
Every launch, end and release goes through gpusched's own executor. How to read it: docs/gpus.md. A part that cannot be
measured says why in a line of its own, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from gpu_parts import driver, lives, searches  # noqa: E402

from gpusched.devices.nvml import NvmlAbsent  # noqa: E402
from gpusched.errors import GpuschedError  # noqa: E402

# What is started from here finds this gpusched, installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

ON_GPUS = ("nvml", "kill", "faults")
"""Parts that a CPU slot cannot rehearse."""
PARTS = (*ON_GPUS, "starts", "groups", "resize", "endings", "search")
"""All parts, the most decisive first; each takes 9 minutes at most, and `--only` runs some."""
VGG19_ROWS = 140_000  # x 1024 float32: 573 MB, as VGG19 has


def parts(
    args: argparse.Namespace, devices: Sequence[str], began_s: float
) -> dict[str, Callable[[], Iterator[dict[str, Any]]]]:
    """Return what measures each part."""
    short = args.cpu
    device = devices[0]
    rows = 2000 if short else VGG19_ROWS
    return {
        "nvml": lambda: driver.nvml(device=device),
        "kill": lambda: driver.kill(device=device, rounds=min(args.rounds, 20)),
        "faults": lambda: driver.faults(device=device),
        "starts": lambda: lives.starts(device=device, rounds=2 if short else 5),
        "groups": lambda: lives.groups(devices=devices, rounds=2 if short else 4),
        "resize": lambda: lives.resizes(device=device, rounds=2 if short else 5, rows=rows),
        "endings": lambda: lives.endings(
            device=device, rounds=args.rounds, until_s=began_s + args.seconds
        ),
        "search": lambda: searches.killed(device=device, deadline_s=30.0 if short else 60.0),
    }


def free_gpus() -> list[str]:
    """The UUIDs of the GPUs that may be used now, among those of CUDA_VISIBLE_DEVICES. Raises DeviceError."""
    from gpusched.devices.base import NoHost
    from gpusched.devices.cuda import CudaDevices

    devices = CudaDevices("cuda", experiment=Path.cwd() / "count")  # no folder, no search
    try:
        return [device.id for device in devices.open(NoHost()) if device.usable]
    finally:
        devices.close()


def about(cpu: bool) -> dict[str, Any]:
    """The machine, for whoever reads the figures. Raises Failed where torch cannot use a GPU."""
    import torch

    if not cpu and not torch.backends.cuda.is_built():
        raise lives.Failed(f"torch {torch.__version__} here is built for CPUs only")
    found: dict[str, Any] = {
        "part": "machine",
        "rehearsal": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if not cpu:
        from gpusched.devices.cuda import gpu_states

        states, machine = gpu_states()
        found.update(
            cuda=torch.version.cuda,
            gpus=[state.label for state in states],
            busy={state.label: state.busy for state in states if state.busy},
            notes=machine.notes,
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cpu", action="store_true", help="rehearse on one CPU slot")
    parser.add_argument("--rounds", type=int, default=50, help="endings of each kind (default 50)")
    parser.add_argument("--seconds", type=float, default=500.0, help="no more endings after this")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    args = parser.parse_args()
    began_s = time.monotonic()
    try:
        devices = ["cpu:1", "cpu:2"] if args.cpu else free_gpus()
        told = {"device": devices[0], "free": len(devices)}
        print(json.dumps({**about(args.cpu), **told}), flush=True)
    except NvmlAbsent:
        message = "the driver shows no GPU here: nothing was measured; --cpu rehearses without one"
        print(json.dumps({"part": "machine", "gpus": [], "message": message}))
        return 0
    except (lives.Failed, GpuschedError) as error:
        print(json.dumps({"part": "machine", "error": str(error)}))
        return 1
    failed = False
    for name, measure in parts(args, devices, began_s).items():
        if name not in args.only or (args.cpu and name in ON_GPUS):
            continue
        try:
            for line in measure():
                print(json.dumps(line), flush=True)
        except Exception as error:  # whatever it is, the other parts are worth having
            failed = True
            text = str(error) if isinstance(error, lives.Failed | GpuschedError) else repr(error)
            print(json.dumps({"part": name, "error": text}), flush=True)
    print(json.dumps({"part": "end", "seconds": round(time.monotonic() - began_s, 1)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

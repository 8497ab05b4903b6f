"""How soon the dashboard shows its first frame, and how much of a core 32 trials cost that report twice a second.

    python scripts/bench_screen.py [--trials 32] [--seconds 20] [--runs 5] [--beside DIR]

``--beside``: a checkout of another version, measured in turns with this one. One JSON object a line and version: the
median of ``--runs`` first frames, from the start of the process in a terminal of 160 by 45 to the table of trials, and
the share of a core that the process takes afterwards, by tab. The views come from a thread of the same process.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
TABS = {"search": b"1", "curves": b"2", "trial": b"3"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        return play(args.trials)
    checkouts = [ROOT] if args.beside is None else [ROOT, args.beside.resolve()]
    firsts: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
    for _ in range(args.runs):
        for checkout in checkouts:
            with Player(checkout, args.trials) as player:
                firsts[checkout].append(player.first_frame_s())
    for checkout in checkouts:
        found = {"checkout": checkout.name, "first_frame_s": statistics.median(firsts[checkout])}
        for tab, key in TABS.items():
            with Player(checkout, args.trials) as player:
                player.first_frame_s()
                player.press(b"\x1b[B" + key)
                found[f"core_share_{tab}"] = player.core_share(args.seconds)
        print(json.dumps(found), flush=True)
    return 0


class Player:
    """A dashboard of made-up views in a terminal of its own."""

    def __init__(self, checkout: Path, trials: int) -> None:
        self._terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self._begun_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--play", "--trials", str(trials)],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "PYTHONPATH": str(checkout), "TERM": "xterm-256color"},
            cwd=checkout,
        )
        os.close(end)

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def first_frame_s(self) -> float:
        """Return the time from the start to the table's title."""
        seen = b""
        while b"trials" not in seen:
            seen += os.read(self._terminal, 1 << 16)
        return time.monotonic() - self._begun_s

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def core_share(self, seconds: float) -> float:
        """Return the share of a core over this time, once a second has passed."""
        self._drain(1.0)
        process = psutil.Process(self._process.pid)
        before = process.cpu_times()
        begun_s = time.monotonic()
        self._drain(seconds)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        return round(used_s / (time.monotonic() - begun_s), 4)

    def _drain(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left_s)[0]:
                os.read(self._terminal, 1 << 16)


def play(trials: int) -> int:
    """Show a search in which every trial reports between one view and the next."""
    from gpusched.dashboard.live import watch

    def frames() -> Iterator[dict[str, Any]]:
        for step in range(1, 10**6):
            yield view(trials, step)
            time.sleep(0.5)

    watch(frames)
    return 0


def view(trials: int, step: int) -> dict[str, Any]:
    def metric(trial: int, at: int) -> float:
        return 1 - 1 / (1 + at * (1 + trial % 7) / 20) - trial / 1000

    return {
        "experiment": "bench",
        "policy": "hypersched",
        "metric": "accuracy",
        "daemon_pid": 1,
        "now_s": step / 2,
        "deadline_s": 3600.0,
        "time_left_s": 3600.0 - step / 2,
        "atoms": {"total": trials, "held": trials},
        "devices": [{"id": f"cpu:{n}", "state": "held", "trial": n} for n in range(trials)],
        "best": {"trial": 6, "step": step, "metric": metric(6, step), "atoms": 1},
        "trial_counts": {"running": trials},
        "trials": [
            {
                "id": n,
                "state": "running",
                "step": step,
                "metric": metric(n, step),
                "best_metric": metric(n, step),
                "atoms": 1,
                "incarnation": 1,
                "step_time_s": 0.5,
                "hparams": {"lr": 0.1 / (n + 1), "width": 16 << n % 4},
                "curve": [metric(n, at) for at in range(max(1, step - 40), step + 1)],
            }
            for n in range(trials)
        ],
        "rungs": [{"milestone": 4**n, "count": 32 >> n} for n in range(4)],
        "decisions": [
            {"at": at / 2, "trial": at % trials, "text": f"grows 1 -> 2: {at} more steps"}
            for at in range(max(1, step - 40), step + 1)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())

"""How much of the ideal number of steps do trials make that only sleep and report? (HyperSched, Table 1)

    python scripts/bench_reports.py [--trials 8 16 32]

Runs ``gpusched run`` with one trial an atom, whose steps sleep 10 ms, for 20 s, and counts the reports in its journal.
One JSON line a run: ``fraction`` has the start-up in it (from the start of the command), ``fraction_after_start``
counts from each trial's first report. ``bare_fraction`` (without start-up) is what there is to reach on this machine at
this moment: as many processes that only sleep and exchange a line with a server that only echoes it. ``share``: of
that, what gpusched reaches.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline

STEP_S, SECONDS = 0.01, 20.0
SLEEPER = """
import time
import gpusched

trial = gpusched.init()
trial.track()
for _ in trial.steps():
    time.sleep(float(trial.hparams.step_s))
    trial.report(score=trial.step / 1e6)
"""
"""What is left of the time of a script that only sleeps and reports is gpusched's own (HyperSched, Table 1)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 16, 32])
    for trials in parser.parse_args().trials:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(Path(folder), trials)
            result["bare_fraction"] = round(bare(Path(folder), trials), 4)
            result["share"] = round(result["fraction_after_start"] / result["bare_fraction"], 4)
            print(json.dumps(result), flush=True)


def measure(folder: Path, trials: int) -> dict[str, Any]:
    """One experiment of ``trials`` sleeping trials."""
    (folder / "sleeper.py").write_text(SLEEPER)
    recipe = folder / "sleeper.yaml"
    recipe.write_text(
        f"script: sleeper.py\nmetric: score\ndeadline: {SECONDS}s\n"
        f"space:\n  step_s: {STEP_S}\n  x: {{uniform: [0, 1]}}\npolicy: {{name: fifo, R: null}}\nmax_trials: {trials}\n"
    )
    command = [sys.executable, "-m", "gpusched", "run", str(recipe), "--devices", f"cpu:{trials}"]
    done = subprocess.run([*command, "--dir", str(folder / "runs")], capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    (experiment,) = (folder / "runs").iterdir()
    told = timeline.read(ExperimentPaths(experiment).journal)
    reports = [[at for at, _, _ in trial.curve] for trial in told.trials.values()]
    rates = [(len(at) - 1) * STEP_S / (at[-1] - at[0]) for at in reports if len(at) > 1]
    return {
        "trials": trials,
        "step_s": STEP_S,
        "seconds": SECONDS,
        "fraction": round(sum(map(len, reports)) / trials * STEP_S / SECONDS, 4),
        "fraction_after_start": round(statistics.mean(rates), 4),
    }


def bare(folder: Path, clients: int) -> float:
    """The fraction of the ideal number of steps that processes make around a bare socket and an echo."""
    path, counted, seconds = str(folder / "echo.sock"), multiprocessing.Queue(), SECONDS / 3
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    server = multiprocessing.Process(target=_echo, args=(listener,), daemon=True)
    server.start()
    arguments = (path, seconds, counted)
    processes = [multiprocessing.Process(target=_client, args=arguments) for _ in range(clients)]
    for process in processes:
        process.start()
    steps = sum(counted.get() for _ in processes)
    for process in processes:
        process.join()
    server.terminate()
    return steps * STEP_S / seconds / clients


def _echo(listener: socket.socket) -> None:
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
            elif data := key.fileobj.recv(4096):
                key.fileobj.sendall(data)
            else:
                selector.unregister(key.fileobj)


def _client(path: str, seconds: float, counted: multiprocessing.Queue[int]) -> None:
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    steps, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(STEP_S)
        line.sendall(b'{"step":1,"score":0.000001}\n')
        line.recv(4096)
        steps += 1
    counted.put(steps)


if __name__ == "__main__":
    main()

"""Cost of a resize to the training: idle time from the last step before it to the first step after it.

    python scripts/bench_resize.py        three times, some minutes on an idle machine

A trial over gloo with 40 MB of state, whose steps take 50 ms, goes from 1 to 2 to 4 to 1 ranks (policy ``Rehearsal``),
beside the same done without gpusched: save, stop, cold ``torchrun``, restore. JSON lines, the medians last.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpusched.policies.rehearsal import REHEARSAL

SIZES, ROUNDS = (1, 2, 4, 1), 3
#: Rows of 1,024 floats: 40 MB.
ROWS = 10_240

TRIAL = f"""
import time, torch, gpusched
trial = gpusched.init()
model = trial.wrap(torch.nn.Linear(1024, {ROWS}, bias=False))
trial.track(model=model)
stamps = open("stamps", "a", buffering=1) if trial.rank == 0 else None
for step in trial.steps():
    began = time.time()
    time.sleep(0.05)
    if stamps:
        print(began, time.time(), trial.world_size, file=stamps)
    trial.report(score=step)
"""

PLAIN = f"""
import sys, time, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, {ROWS}, bias=False))
if os.path.exists(sys.argv[1]):
    model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
time.sleep(0.05)
if dist.get_rank() == 0:
    print("first", time.time(), flush=True)
    print("last", time.time(), flush=True)
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""

RECIPE = f"""
script: trial.py
metric: score
deadline: 240s
space: {{x: {{uniform: [0, 1]}}}}
max_trials: 1
policy: {{name: "{REHEARSAL}", sizes: {list(SIZES)}, steps: 12}}
devices: cpu:{max(SIZES)}
"""
#: ``1->2``, and the seconds without training.
Move = tuple[str, float]


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def ours() -> list[Move]:
    """Return every resize of a trial, as its rank 0 has stamped the steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trial.py").write_text(TRIAL)
        (folder / "r.yaml").write_text(RECIPE)
        command = [sys.executable, "-m", "gpusched", "run", "r.yaml", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: list[Move] = []
        before, ended = 0, 0.0
        for line in (folder / "stamps").read_text().splitlines():
            began_at, ended_at, size = line.split()
            if before not in (0, int(size)):
                found.append((f"{before}->{size}", float(began_at) - ended))
            before, ended = int(size), float(ended_at)
        return found


def plain() -> list[Move]:
    """Return the same of cold ``torchrun``: from the last step of one size to the first of the next."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, state = folder / "plain.py", folder / "state.pt"
        script.write_text(PLAIN)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        found, last, before = [], 0.0, 0
        for size in SIZES:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
            command += ["--local-addr", "127.0.0.1", str(script), str(state)]
            out = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
            times = dict(line.split() for line in out.splitlines() if line[:4] in ("firs", "last"))
            if before:
                found.append((f"{before}->{size}", float(times["first"]) - last - 0.05))
            last, before = float(times["last"]), size
        return found


def main() -> None:
    times: dict[str, dict[str, list[float]]] = {"ours": {}, "plain": {}}
    for _ in range(ROUNDS):
        for how, measure in (("ours", ours), ("plain", plain)):
            for move, seconds in measure():
                times[how].setdefault(move, []).append(seconds)
                say(how=how, move=move, idle_s=round(seconds, 3))
    for before, after in itertools.pairwise(SIZES):
        move = f"{before}->{after}"
        idle_s, cold_s = (statistics.median(times[how][move]) for how in ("ours", "plain"))
        ratio = round(cold_s / idle_s, 1)
        say(move=move, idle_s=round(idle_s, 3), cold_s=round(cold_s, 3), ratio=ratio)


if __name__ == "__main__":
    main()

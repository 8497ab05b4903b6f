"""What does a resize cost the training? Last report before to first report after, 1 -> 2 -> 4 -> 1 ranks over gloo.

A trial with STATE_MB of state reports every 50 ms; policy ``profile`` walks it through the sizes. In the same run the
same is done the way it is done without gpusched: save, stop, cold ``torchrun``, restore. One JSON line a resize, then
one with the medians and their ratio.

    python scripts/bench_resize.py --state-mb 40 --repeat 3
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIAL = """
import time, torch, gpusched
trial = gpusched.init()
model = trial.wrap(torch.nn.Linear(1024, {rows}, bias=False))
trial.track(model=model)
x = torch.ones(1, 1024)
for step in trial.steps():
    time.sleep(0.05)
    trial.report(score=step)
"""

PLAIN = """
import sys, time, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, {rows}, bias=False))
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


def ours(folder: Path, rows: int, sizes: list[int]) -> list[tuple[str, float]]:
    """Seconds from the last report before each resize to the first after it, less a step."""
    (folder / "trial.py").write_text(TRIAL.format(rows=rows))
    (folder / "r.yaml").write_text(
        "script: trial.py\nmetric: score\ndeadline: 120s\nspace: {x: {uniform: [0, 1]}}\nmax_trials: 1\n"
        f"policy: {{name: profile, sizes: {sizes}, steps: 12}}\ndevices: cpu:{max(sizes)}\n"
    )
    command = [sys.executable, "-m", "gpusched", "run", "r.yaml", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    (experiment,) = (folder / "runs").glob("r-*")
    return resizes(experiment / "journal.db")


def resizes(path: Path) -> list[tuple[str, float]]:
    """(``1->2``, seconds) of every resize in a journal."""
    journal = sqlite3.connect(path)
    rows = journal.execute("SELECT at, kind, body, commands FROM events ORDER BY seq").fetchall()
    journal.close()
    found, size, last_at, incarnation = [], 0, 0.0, 0
    sizes: dict[int, int] = {}
    for at, kind, text, commands in rows:
        for name, fields in json.loads(commands or "[]"):
            if name == "Launch":
                sizes[fields["incarnation"]] = len(fields["devices"])
        if kind != "Reported":
            continue
        report = json.loads(text)
        if report["incarnation"] != incarnation:
            if incarnation:
                after = sizes[report["incarnation"]]
                found.append((f"{size}->{after}", at - last_at - report.get("step_time_s", 0.0)))
            incarnation = report["incarnation"]
            size = sizes[incarnation]
        last_at = at
    return found


def plain(folder: Path, rows: int, sizes: list[int]) -> list[tuple[str, float]]:
    """The same with cold ``torchrun``: from the last step of one size to the first of the next."""
    script, state = folder / "plain.py", folder / "state.pt"
    script.write_text(PLAIN.format(rows=rows))
    found, last, before = [], 0.0, 0
    for size in sizes:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
        command += ["--local-addr", "127.0.0.1", str(script), str(state)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        out = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
        times = dict(line.split() for line in out.splitlines() if line[:4] in ("firs", "last"))
        if before:
            found.append((f"{before}->{size}", float(times["first"]) - last - 0.05))
        last, before = float(times["last"]), size
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--state-mb", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", default="1,2,4,1")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    rows = args.state_mb * 2**20 // 4096
    times: dict[str, dict[str, list[float]]] = {"ours": {}, "plain": {}}
    for _ in range(args.repeat):
        for how, measure in (("ours", ours), ("plain", plain)):
            with tempfile.TemporaryDirectory() as folder:
                for move, seconds in measure(Path(folder), rows, sizes):
                    times[how].setdefault(move, []).append(seconds)
                    print(
                        json.dumps({"how": how, "move": move, "idle_s": round(seconds, 3)}),
                        flush=True,
                    )
            time.sleep(0.5)
    for move, found in times["ours"].items():
        mine, theirs = statistics.median(found), statistics.median(times["plain"][move])
        result = {
            "move": move,
            "state_mb": args.state_mb,
            "idle_s": round(mine, 3),
            "cold_s": round(theirs, 3),
        }
        print(json.dumps({**result, "ratio": round(theirs / mine, 1)}))


if __name__ == "__main__":
    main()

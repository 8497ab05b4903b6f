"""How long until a trial's ranks run: warm launches against cold ``torchrun``, side by side.

    python scripts/bench_launch.py [--ranks 1,2,4] [--rounds 5]

Each round launches the same script once cold (``torchrun --nproc-per-node n``) and once warm (the executor, on a warm
server that has been ready for a while), in turn, and notes CLOCK_MONOTONIC

* at the decision (just before the process is started, or the command executed),
* at the user's first line on every rank (the last of them counts),
* after the first DDP step on every rank,
* at the script's last line, and when nothing of it is left ("empty": the exit of torchrun, or the executor's word).

Prints a JSON line a round, and in the end one per number of ranks with the medians of all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_parts.box import Box

SCRIPT = """
import time
first_s = time.monotonic()
import json, os, pathlib
notes = pathlib.Path(os.environ["BENCH_NOTES"])
if "GPUSCHED_TRIAL" in os.environ:
    notes = notes / os.environ["GPUSCHED_TRIAL"]
notes.mkdir(exist_ok=True)
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
optimizer.zero_grad()
net(torch.randn(8, 64)).sum().backward()
optimizer.step()
step_s = time.monotonic()
dist.barrier()
dist.destroy_process_group()
note = {"first": first_s, "step": step_s, "last": time.monotonic()}
(notes / os.environ["RANK"]).write_text(json.dumps(note))
"""


@dataclass(frozen=True)
class Launched:
    """Seconds: from the decision to the first line and the first step of the last rank; from last line to empty."""

    first_s: float
    step_s: float
    empty_s: float


def read(notes: Path, ranks: int, decided_s: float, empty_s: float) -> Launched:
    marks = [json.loads((notes / str(rank)).read_text()) for rank in range(ranks)]
    latest = {name: max(mark[name] for mark in marks) for name in marks[0]}
    return Launched(
        latest["first"] - decided_s, latest["step"] - decided_s, empty_s - latest["last"]
    )


def cold(notes: Path, script: Path, ranks: int) -> Launched:
    environment = {**os.environ, "BENCH_NOTES": str(notes), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    decided_s = time.monotonic()
    done = subprocess.run([*words, str(script)], env=environment, capture_output=True)
    empty_s = time.monotonic()
    if not notes.exists():
        sys.exit(f"torchrun failed:\n{done.stderr.decode()}")
    return read(notes, ranks, decided_s, empty_s)


def warm(notes: Path, box: Box, devices: tuple[str, ...]) -> Launched:
    box.devices = devices
    decided_s = time.monotonic()
    trial = box.launch()
    ending = box.exit(trial)
    empty_s = time.monotonic()
    if ending.outcome != "finished":
        sys.exit(f"a warm launch ended as {ending.outcome}: {ending.error}")
    return read(notes / str(trial), len(devices), decided_s, empty_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="gpusched-bench-") as name:
        folder, script = Path(name), Path(name) / "script.py"
        script.write_text(SCRIPT)
        (notes := folder / "warm").mkdir()
        environment = {"BENCH_NOTES": str(notes)}
        with Box(device="cpu:4", hparams={}, script=script, env=environment) as box:
            devices = box.devices
            warm(notes, box, devices[:1])
            box.executor.poll(box.executor.now() + 2.0)  # the server tidies its memory up
            for ranks in map(int, given.ranks.split(",")):
                rounds = []
                for number in range(given.rounds):
                    slow = cold(folder / f"cold-{ranks}-{number}", script, ranks)
                    rounds.append((slow, warm(notes, box, devices[:ranks])))
                    both = dict(zip(("cold", "warm"), map(asdict, rounds[-1]), strict=True))
                    print(json.dumps({"ranks": ranks, "round": number + 1, **both}), flush=True)
                results.append(summary(ranks, rounds))
    for result in results:
        print(json.dumps(result))


def summary(ranks: int, rounds: list[tuple[Launched, Launched]]) -> dict[str, float]:
    def median(which: int, name: str) -> float:
        return statistics.median(getattr(pair[which], name) for pair in rounds)

    cold_s, warm_s = median(0, "first_s"), median(1, "first_s")
    return {
        "ranks": ranks,
        "cold_s": round(cold_s, 4),
        "warm_s": round(warm_s, 4),
        "ratio": round(cold_s / warm_s, 1),
        "cold_first_step_s": round(median(0, "step_s"), 4),
        "warm_first_step_s": round(median(1, "step_s"), 4),
        "cold_empty_s": round(median(0, "empty_s"), 4),
        "warm_empty_s": round(median(1, "empty_s"), 4),
    }


if __name__ == "__main__":
    main()

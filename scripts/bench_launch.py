"""How long until a trial's ranks run: warm launches against cold ``torchrun``, side by side.

    python scripts/bench_launch.py [--ranks 1,2,4] [--rounds 5]

Each round launches the same script once cold (``torchrun --nproc-per-node n``) and once warm (the executor, on a warm
server that has been ready for a while), in turn, and notes CLOCK_MONOTONIC

* at the decision (just before the process is started, or the command executed),
* at the user's first line on every rank (the last of them counts),
* after the first DDP step on every rank,
* at the script's last line, and when nothing of it is left ("empty": the exit of torchrun, or the executor's word).

Ends with one JSON line per number of ranks, medians of all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpusched.core.commands import Launch
from gpusched.core.events import TrialExited
from gpusched.devices.choose import CpuDevices
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting
from gpusched.executors.local.executor import TorchrunExecutor
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe.recipe import Recipe

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


class Cold:
    def __init__(self, folder: Path, script: Path) -> None:
        self._folder = folder
        self._script = script
        self._count = 0

    def launch(self, ranks: int) -> Launched:
        self._count += 1
        notes = self._folder / f"cold-{self._count}"
        environment = {**os.environ, "BENCH_NOTES": str(notes), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        decided_s = time.monotonic()
        done = subprocess.run([*words, str(self._script)], env=environment, capture_output=True)
        empty_s = time.monotonic()
        if not notes.exists():
            sys.exit(f"torchrun failed:\n{done.stderr.decode()}")
        return read(notes, ranks, decided_s, empty_s)


class Warm:
    def __init__(self, folder: Path, executor: TorchrunExecutor) -> None:
        self._folder = folder
        self._executor = executor
        self._count = 0

    def launch(self, ranks: int) -> Launched:
        self._count += 1
        executor, trial = self._executor, self._count
        devices = tuple(device.id for device in executor.inventory())[:ranks]
        decided_s = time.monotonic()
        executor.execute(Launch(trial, 1, devices, {}))
        ending = None
        while ending is None:
            for event in executor.poll(executor.now() + 60):
                ending = event if isinstance(event, TrialExited) else ending
        empty_s = time.monotonic()
        if ending.outcome != "finished":
            sys.exit(f"a warm launch ended as {ending.outcome}: {ending.error}")
        return read(self._folder / "warm" / str(trial), ranks, decided_s, empty_s)


@contextmanager
def warm_executor(folder: Path, script: Path) -> Iterator[TorchrunExecutor]:
    (folder / "warm").mkdir()
    environment: Mapping[str, str] = {"BENCH_NOTES": str(folder / "warm")}
    began_s = time.monotonic()
    hub = Hub(ExperimentPaths(folder).socket)
    recipe = Recipe(
        name="bench",
        script=script,
        cwd=folder,
        deadline_s=3600.0,
        metric="none",
        space={},
        env=environment,
    )
    paths = ExperimentPaths(folder)
    setting = Setting(paths=paths, recipe=recipe, hub=hub, clock=lambda: time.monotonic() - began_s)
    executor = TorchrunExecutor(setting, CpuDevices(4))
    try:
        yield executor
    finally:
        executor.close()
        hub.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    sizes = [int(word) for word in given.ranks.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="gpusched-bench-"))
    script = folder / "script.py"
    script.write_text(SCRIPT)
    results = []
    try:
        with warm_executor(folder, script) as executor:
            cold, warm = Cold(folder, script), Warm(folder, executor)
            warm.launch(1)
            executor.poll(executor.now() + 2.0)  # the server tidies its memory up
            for ranks in sizes:
                rounds = []
                for number in range(given.rounds):
                    rounds.append((cold.launch(ranks), warm.launch(ranks)))
                    print(
                        f"{ranks} ranks, round {number + 1}: cold {rounds[-1][0]}, warm {rounds[-1][1]}",
                        flush=True,
                    )
                results.append(summary(ranks, rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
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

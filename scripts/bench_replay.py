"""How long it takes to resume a large experiment: replay of its journal through ``Experiment.handle``.

    python scripts/bench_replay.py [--trials 1000] [--reports 100] [--policy fifo --policy hypersched]

Simulates ``trials`` configurations of ``reports`` steps each with a journal, then reads and replays that journal as
``gpusched resume`` does. Prints one JSON object a run; ``cpu_s`` is what counts on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path

from gpusched.core.events import DevicesJoined, Reported
from gpusched.driver.loop import Driver, replay
from gpusched.journal.log import Journal
from gpusched.sim.setup import Setup, experiment, recipe

ATOMS = 50


def setup(policy: str, trials: int, reports: int) -> Setup:
    """Every trial may take all its steps before the deadline; 0.1 s a step on one atom."""
    return Setup(
        policy=policy,
        options={"R": reports, "r": 1, "eta": 4.0},
        atoms=ATOMS,
        deadline_s=2 * trials * reports * 0.1 / ATOMS + 60.0,
        max_trials=trials,
    )


def record(of: Setup, path: Path) -> float:
    """Run the experiment, with a journal; return the CPU time of the longest turn of the loop, in milliseconds."""
    journal = Journal.create(path, {})
    executor = of.machine()
    driver = Driver(experiment(of, recipe(of)), executor, journal)
    devices = tuple(device.id for device in executor.inventory())
    driver.handle([DevicesJoined(at=0.0, devices=devices)])
    longest_s, frozen_at_s = 0.0, 0.0
    while not driver.experiment.state.finished:
        began_s = time.thread_time()
        driver.turn()
        if time.monotonic() > frozen_at_s + 1.0:  # as the daemon does
            frozen_at_s = time.monotonic()
            gc.collect(1)
            gc.freeze()
        longest_s = max(longest_s, time.thread_time() - began_s)
    gc.unfreeze()
    journal.commit()
    journal.close()
    return 1000 * longest_s


def measure(of: Setup, path: Path, longest_turn_ms: float) -> dict[str, object]:
    """Read and replay."""
    began = time.perf_counter()
    journal = Journal.open(path)
    entries = list(journal.entries())
    read_s = time.perf_counter() - began
    journal.close()
    reports = sum(type(entry.event) is Reported for entry in entries)
    fresh = experiment(of, recipe(of))
    began, cpu_began = time.perf_counter(), time.process_time()
    journal = Journal.open(path)
    replay(fresh, journal.entries())
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    journal.close()
    return {
        "policy": of.policy,
        "trials": len(fresh.state.trials),
        "entries": len(entries),
        "reports": reports,
        "read_s": round(read_s, 3),
        "seconds": round(seconds, 3),
        "cpu_s": round(cpu_s, 3),
        "entries_per_s": round(len(entries) / seconds),
        "longest_turn_ms": round(longest_turn_ms, 1),
        "journal_mib": round(path.stat().st_size / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--reports", type=int, default=100, help="steps a trial may have")
    parser.add_argument("--policy", action="append", help="default: fifo and hypersched")
    args = parser.parse_args()
    memory = Path("/dev/shm")
    for policy in args.policy or ["fifo", "hypersched"]:
        of = setup(policy, args.trials, args.reports)
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            path = Path(folder) / "journal.db"
            print(json.dumps(measure(of, path, record(of, path))), flush=True)


if __name__ == "__main__":
    main()

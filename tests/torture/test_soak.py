"""A search for hours with a random fault every ten seconds: nothing leaks (reliability T18).

``GPUSCHED_SOAK_S`` says how long (two hours by default); the seed is printed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusched.processes.identity import identify, send_signal
from tests.torture.bed import Bed, MakeBed, count
from tests.torture.test_daemon_kills import stir
from tests.torture.test_sockets import Attacker, memory_kib

LENGTH_S = float(os.environ.get("GPUSCHED_SOAK_S", "7200"))
FAULT_EVERY_S = 10.0


class Weather:
    """One fault at a time."""

    def __init__(self, bed: Bed, rng: random.Random) -> None:
        self.bed = bed
        self.rng = rng
        self.counts: dict[str, int] = {}
        self.attacker = Attacker(bed, rng.randrange(1 << 30))

    def strike(self) -> None:
        fault = self.rng.choice([self.daemon, self.shim, self.rank, self.server, self.nonsense])
        name = fault.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        fault()

    def daemon(self) -> None:
        self.bed.kill()
        time.sleep(self.rng.random())
        self.bed.resume()

    def shim(self) -> None:
        self._kill(lambda pids, leaders: [pid for pid in pids if pid in leaders])

    def rank(self) -> None:
        self._kill(lambda pids, leaders: [pid for pid in pids if pid not in leaders])

    def _kill(self, choose: Callable[[list[int], set[int]], list[int]]) -> None:
        found = {key: pids for key, pids in self.bed.processes().items() if key[0] >= 0}
        leaders = {(self.bed.shim_of(*key) or {}).get("pid") or 0 for key in found}
        victims = [pid for pids in found.values() for pid in choose(pids, leaders)]
        if victims:
            self._hit(self.rng.choice(victims))

    def server(self) -> None:
        servers = self.bed.processes().get((-1, -1), [])
        if servers:
            self._hit(self.rng.choice(servers))

    def nonsense(self) -> None:
        self.attacker.attack(200)

    def _hit(self, pid: int) -> None:
        for process in identify([pid]):
            send_signal(process, signal.SIGKILL)


def measure(bed: Bed) -> dict[str, int]:
    pid = bed.daemon.pid if bed.daemon is not None else 0
    root = bed.paths.root
    return {
        "daemon_kib": memory_kib(pid),
        "descriptors": count(f"/proc/{pid}/fd"),
        "processes": sum(map(len, bed.processes().values())),
        "segments": count("/dev/shm"),
        "staged": staged(root),
        "journal_kib": bed.paths.journal.stat().st_size >> 10,
    }


def staged(root: Path) -> int:
    """Files and folders that are being written. Not ``rglob``: it raises where a folder goes while it is walked."""
    names = [name for _, *found in os.walk(root) for name in found[0] + found[1]]
    return sum(
        (name.startswith(".") and name.endswith(".tmp")) or name.startswith(".staged-")
        for name in names
    )


def soak(make_bed: MakeBed, length_s: float, every_s: float, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    bed = make_bed(
        devices="cpu:4",
        space={"x": {"uniform": [0, 1]}, "step_s": 0.2},
        policy={"name": "asha", "r": 8, "R": 100_000, "eta": 3},
        deadline="12h",
        max_failures=10_000,
    )
    segments = count("/dev/shm")
    bed.begin(reports=10)
    weather, first, last = Weather(bed, rng), measure(bed), {}
    until = time.monotonic() + length_s
    while time.monotonic() < until:
        weather.strike()
        bed.wait_for_reports(2)
        rest = time.monotonic() + every_s
        while time.monotonic() < min(rest, until):
            stir(bed, rng)
            time.sleep(min(1.0, every_s / 5))
        last = measure(bed)
        print(f"{time.monotonic() - until + length_s:6.0f} s  {last}", flush=True)
    weather.attacker.close()
    assert last["daemon_kib"] < first["daemon_kib"] * 1.5 + 20_000
    assert last["descriptors"] < first["descriptors"] + 80, "at most the attacker's lines"
    assert last["processes"] < 60
    again = bed.finish()
    assert count("/dev/shm") <= segments, "no segment left"
    assert not list(Path(bed.paths.trials).rglob(".*.tmp")), "no file left half written"
    print(f"{weather.counts}; {bed.reports()} reports; {len(again.state.trials)} trials")


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
def test_soak(make_bed: MakeBed) -> None:
    soak(make_bed, LENGTH_S, FAULT_EVERY_S, seed=random.randrange(1 << 30))

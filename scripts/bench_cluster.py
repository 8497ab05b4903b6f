"""What a cluster costs, beside one machine in the same run: reports, launches and a node's death.

One JSON line a figure. Nodes are processes of this machine (``local:2x16`` and so on), so they share its cores.

    python scripts/bench_cluster.py reports launches deaths

``reports``: 32 trials that report ten times a second: what ``trial.report`` takes, and the CPU of daemon and nodes.
``launches``: trials of three reports one after the other, on one slot a node: from a trial's last report to the next
one's first. ``deaths``: every process of a node is killed, or stopped: until its trials' first new step.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from bench_reports import reports_of, watch_daemon

TRAIN = """\
import array, os, time
import gpusched

trial = gpusched.init()
trial.track()
took = array.array("d")
folder = os.environ["BENCH_FOLDER"]
for _ in trial.steps():
    time.sleep(float(os.environ["BENCH_STEP_S"]))
    began = time.perf_counter()
    try:
        trial.report(score=trial.hparams.x)
    finally:
        with open(f"{folder}/{os.getpid()}", "ab") as told:
            array.array("d", [time.perf_counter() - began]).tofile(told)
"""


def say(figure: str, place: str, **found: object) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
    print(json.dumps({"figure": figure, "place": place, **rounded}), flush=True)


class Search:
    """``gpusched run`` of the script above in a folder of its own. ``place``: ``cpu:8``, or a cluster's address."""

    def __init__(self, folder: Path, place: str, step_s: float, **recipe: Any) -> None:
        self.folder = folder
        self.told = folder / "told"
        self.told.mkdir()
        (folder / "train.py").write_text(TRAIN)
        where = {"devices": place} if place.startswith("cpu:") else {"cluster": place}
        env = {"BENCH_FOLDER": str(self.told), "BENCH_STEP_S": str(step_s)}
        recipe = {"script": "train.py", "metric": "score", "env": env, **where, **recipe}
        recipe["space"] = {"x": {"uniform": [0, 1]}}
        (folder / "search.yaml").write_text(json.dumps(recipe))
        words = ["run", str(folder / "search.yaml"), "--dir", str(folder / "runs"), "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpusched", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    @property
    def experiment(self) -> Path:
        (found,) = (self.folder / "runs").iterdir()
        return found

    def end(self) -> None:
        if self.process.wait() != 0 and self.process.stderr is not None:
            sys.exit(self.process.stderr.read().decode())

    def latencies_s(self) -> list[float]:
        found = array.array("d")
        for path in self.told.iterdir():
            with path.open("rb") as told:
                found.fromfile(told, path.stat().st_size // 8)
        return sorted(found)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---------------------------------------------------------------- figures


def reports(place: str, seconds: float = 30.0, trials: int = 32, step_s: float = 0.1) -> None:
    fifo = {"policy": {"name": "fifo", "R": None}, "max_trials": trials}
    with scratch() as folder:
        search = Search(folder, place, step_s, deadline=f"{seconds}s", **fifo)
        nodes_s: dict[int, float] = {}
        daemon_s, _ = watch_daemon(search.process, folder / "runs", noting_nodes(folder, nodes_s))
        search.end()
        found, times = search.latencies_s(), reports_of(search.experiment)
    rates = [(len(at) - 1) * step_s / (at[-1] - at[0]) for at in times.values() if len(at) > 1]
    say(
        "reports",
        place,
        trials=len(times),
        p50_ms=1e3 * quantile(found, 0.5),
        p99_ms=1e3 * quantile(found, 0.99),
        daemon_cpu=daemon_s / seconds,
        node_cpu=statistics.mean(nodes_s.values()) / seconds if nodes_s else None,
        fraction_after_start=statistics.mean(rates),
        first_reports_s=[round(f(at[0] for at in times.values()), 1) for f in (min, max)],
    )


def noting_nodes(folder: Path, nodes_s: dict[int, float]) -> Any:
    """Return a function that notes the CPU seconds of the node processes of the search in ``folder``."""

    def look() -> None:
        for process in node_processes(folder):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                nodes_s[process.pid] = times.user + times.system

    return look


def node_processes(folder: Path, *words: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        given = process.info["cmdline"] or []
        is_node = {"gpusched.executors.cluster.node", *words} <= set(given)
        if is_node and any(word.startswith(str(folder)) for word in given):
            found.append(process)
    return found


def launches(place: str, trials: int = 24) -> None:
    fifo = {"policy": {"name": "fifo", "R": 3}, "max_trials": trials}
    with scratch() as folder:
        search = Search(folder, place, 0.0, deadline="5m", **fifo)
        search.end()
        times = list(reports_of(search.experiment).values())
    # Pair each trial's end with the begin of the trial that took its slot, of two.
    ends = sorted(at[-1] for at in times)[:-2]
    begins = sorted(at[0] for at in times)[2:]
    gaps = sorted(begin - end for end, begin in zip(ends, begins, strict=True))
    say("launches", place, n=len(gaps), median_s=statistics.median(gaps), p90_s=quantile(gaps, 0.9))


def deaths(place: str, repeat: int = 3) -> None:
    """Four trials on two nodes of four slots; every process of one node is killed, or stopped, which is as silent as
    a machine without power."""
    for signal_, told in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "silent")):
        took: list[float] = []
        for _ in range(repeat):
            took += one_death(place, signal_)
        most_s, median_s = max(took), statistics.median(took)
        say(f"deaths: {told}", place, n=len(took), median_s=median_s, most_s=most_s)


def one_death(place: str, signal_: signal.Signals) -> list[float]:
    with scratch() as folder:
        fifo = {"policy": {"name": "fifo", "R": None}, "max_trials": 4}
        search = Search(folder, place, 0.05, deadline="90s", save_every="1s", **fifo)
        took = death(search, signal_)
        search.process.send_signal(signal.SIGINT)
        search.end()
    return took


def death(search: Search, signal_: signal.Signals) -> list[float]:
    """Strike the node with the fewest trials, not none; return how long each of them took to its next step."""
    wait(lambda: len(list(search.told.iterdir())) >= 4)
    time.sleep(4.0)
    homes: dict[str, list[int]] = {}
    for pid in map(int, (path.name for path in search.told.iterdir())):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        home = next(one for one in environ if one.startswith(b"GPUSCHED_DIR=")).decode()
        homes.setdefault(home, []).append(pid)
    home, _ranks = min(homes.items(), key=lambda one: len(one[1]))
    name = Path(home.partition("=")[2]).name.rpartition("-")[0]
    victims = {process.pid for process in node_processes(search.folder, name)}
    for pid in psutil.pids():
        with suppress(OSError):
            if home.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                victims.add(pid)
    began_s = time.monotonic()
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal_)
    found: dict[Path, float] = {}
    while len(found) < len(homes[home]):
        for path in search.experiment.glob("trials/*/reports.jsonl"):
            if path not in found and '"i":2' in path.read_text():
                found[path] = time.monotonic() - began_s
        if time.monotonic() > began_s + 60.0:
            sys.exit("a trial of the dead node has not gone on")
        time.sleep(0.01)
    if signal_ == signal.SIGSTOP:
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return list(found.values())


def wait(is_over: Any, limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_over():
        if time.monotonic() > end_s:
            sys.exit("waited in vain")
        time.sleep(0.01)


PLACES = {
    "reports": ("cpu:32", "local:2x16", "local:4x8"),
    "launches": ("cpu:2", "local:2x1"),
    "deaths": ("local:2x4",),
}


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("figures", nargs="*", default=[*PLACES])
    args = parser.parse_args(argv)
    measure = {"reports": reports, "launches": launches, "deaths": deaths}
    for figure in args.figures:
        for place in PLACES[figure]:
            measure[figure](place)


if __name__ == "__main__":
    main()
